/* SPDX-License-Identifier: BSD-3-Clause */
/* Rank 0 opens the file, and keeps what that reads; the others open it from that. */
#define _POSIX_C_SOURCE 200809L
#include <berth/more.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/mpi/mpi_ranks.h"

/* The most bytes that rank 0 keeps. */
#define MAX_HEAD_NBYTES ((uint64_t)64 << 20)

/* ---- what an open has read ---- */

/* Bytes [offset, offset + nbytes) of the file, which are at `at` of the head's bytes. */
typedef struct head_piece {
    uint64_t offset;
    uint64_t nbytes;
    uint64_t at;
} head_piece;

/* What an open has read: pieces by offset. */
typedef struct file_head {
    head_piece *pieces;
    uint64_t n;
    uint64_t room;
    char *bytes;
    uint64_t nbytes;
    uint64_t bytes_room;
} file_head;

/* By which ranks know that they see one file. On some file systems each host has its own inodes. */
typedef struct file_facts {
    uint64_t nbytes;
    int64_t seconds;
    int64_t nanoseconds;
} file_facts;

typedef struct open_file {
    berth_mpi_file file; /* first: the caller's pointer is to it */
    char *path;
    int fd;
    file_facts facts;
    pthread_mutex_t lock; /* guards what follows: a prefetch may begin while the file is opened */
    bool is_recording;    /* in rank 0, while it opens */
    file_head head;
} open_file;

static void *grow(void *bytes, uint64_t needed, size_t item_nbytes, uint64_t *room)
{
    uint64_t more = needed > 2 * *room ? needed : 2 * *room;
    void *grown = realloc(bytes, more * item_nbytes);

    if (grown)
        *room = more;
    return grown;
}

/* The first piece that begins behind `offset`. */
static uint64_t head_find_next(const file_head *head, uint64_t offset)
{
    uint64_t low = 0, high = head->n;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (head->pieces[middle].offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The range, if one piece holds all of it. */
static const char *head_find(const file_head *head, uint64_t offset, uint64_t nbytes)
{
    const uint64_t next = head_find_next(head, offset);
    const head_piece *piece = next > 0 ? &head->pieces[next - 1] : NULL;

    if (!piece || offset - piece->offset > piece->nbytes ||
        nbytes > piece->nbytes - (offset - piece->offset))
        return NULL;
    return head->bytes + piece->at + (offset - piece->offset);
}

static bool head_reserve(file_head *head, uint64_t nbytes)
{
    if (head->n == head->room) {
        head_piece *pieces = grow(head->pieces, head->n + 1, sizeof *pieces, &head->room);
        if (!pieces)
            return false;
        head->pieces = pieces;
    }
    if (nbytes > head->bytes_room - head->nbytes) {
        char *bytes = grow(head->bytes, head->nbytes + nbytes, 1, &head->bytes_room);
        if (!bytes)
            return false;
        head->bytes = bytes;
    }
    return true;
}

/* Keeps a range. If there is no room for it, other ranks read it themselves. */
static void head_add(file_head *head, const void *bytes, uint64_t nbytes, uint64_t offset)
{
    if (nbytes > MAX_HEAD_NBYTES - head->nbytes || !head_reserve(head, nbytes))
        return;
    head_piece *place = head->pieces + head_find_next(head, offset);
    memmove(place + 1, place, (size_t)(head->pieces + head->n - place) * sizeof *place);
    *place = (head_piece){.offset = offset, .nbytes = nbytes, .at = head->nbytes};
    memcpy(head->bytes + head->nbytes, bytes, nbytes);
    head->nbytes += nbytes;
    head->n++;
}

/* Returns 0 or an errno value. */
static int file_read(int fd, char *buffer, size_t nbytes, uint64_t offset)
{
    while (nbytes > 0) {
        ssize_t n = pread(fd, buffer, nbytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : ENODATA; /* it was cut after it was opened */
        buffer += n;
        nbytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

static bool opened_copy_known(open_file *opened, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)pthread_mutex_lock(&opened->lock);
    const char *known = head_find(&opened->head, offset, nbytes);
    if (known)
        memcpy(buffer, known, nbytes);
    (void)pthread_mutex_unlock(&opened->lock);
    return known != NULL;
}

/* Of berth_from_function. Several threads call it. */
static int opened_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    open_file *opened = context;

    if (opened_copy_known(opened, buffer, nbytes, offset))
        return 0;
    int result = file_read(opened->fd, buffer, nbytes, offset);
    if (result != 0)
        return result;
    (void)pthread_mutex_lock(&opened->lock);
    if (opened->is_recording)
        head_add(&opened->head, buffer, nbytes, offset);
    (void)pthread_mutex_unlock(&opened->lock);
    return 0;
}

/* ---- the file ---- */

/* A failed system call on the file; errno says why. */
static int opened_fail(const open_file *opened, const char *what, berth_error *error)
{
    const int number = errno;
    const bool is_absent = number == ENOENT || number == ENOTDIR;

    (void)bth_mpi_fail(error, is_absent ? BERTH_E_NOT_FOUND : BERTH_E_SYSTEM, "%s: %s: %s",
                       opened->path, what, strerror(number));
    error->system_errno = number;
    return error->code;
}

/* Opening a named pipe would wait for a writer. */
static int opened_open_file(open_file *opened, file_facts *facts, berth_error *error)
{
    struct stat status;

    if (stat(opened->path, &status) < 0)
        return opened_fail(opened, "cannot be opened", error);
    if (!S_ISREG(status.st_mode))
        return bth_mpi_fail(error, BERTH_E_ARGUMENT, "%s: is not a regular file", opened->path);
    opened->fd = open(opened->path, O_RDONLY | O_NOCTTY | O_CLOEXEC);
    if (opened->fd < 0)
        return opened_fail(opened, "cannot be opened", error);
    if (fstat(opened->fd, &status) < 0)
        return opened_fail(opened, "cannot be examined", error);
    *facts = (file_facts){.nbytes = (uint64_t)status.st_size,
                          .seconds = (int64_t)status.st_mtim.tv_sec,
                          .nanoseconds = (int64_t)status.st_mtim.tv_nsec};
    return 0;
}

static int opened_open_checkpoint(open_file *opened, const berth_params *params, berth_error *error)
{
    berth_source source =
        berth_from_function(opened_read, opened, opened->facts.nbytes, opened->path);

    source.fd = opened->fd;
    return berth_open_source(&source, params, &opened->file.checkpoint, error);
}

/* Rank 0: opens the file, and keeps what that takes. */
static int opened_record(open_file *opened, const char *path, const berth_params *params,
                         berth_error *error)
{
    if (!path)
        return bth_mpi_fail(error, BERTH_E_ARGUMENT, "the path is NULL");
    opened->path = strdup(path);
    if (!opened->path)
        return bth_mpi_fail_memory(error, strlen(path) + 1);
    if (opened_open_file(opened, &opened->facts, error) < 0)
        return error->code;
    opened->is_recording = true;
    int status = opened_open_checkpoint(opened, params, error);
    (void)pthread_mutex_lock(&opened->lock);
    opened->is_recording = false;
    (void)pthread_mutex_unlock(&opened->lock);
    return status;
}

/* The other ranks: room for what rank 0 has kept. */
static int opened_make_room(open_file *opened, const uint64_t sizes[3], berth_error *error)
{
    file_head *head = &opened->head;

    opened->path = malloc(sizes[0]);
    head->pieces = malloc((sizes[1] + 1) * sizeof *head->pieces);
    head->bytes = malloc(sizes[2] + 1);
    head->n = sizes[1];
    head->nbytes = sizes[2];
    if (opened->path && head->pieces && head->bytes)
        return 0;
    return bth_mpi_fail_memory(error, sizes[0] + sizes[1] * sizeof *head->pieces + sizes[2]);
}

/* Sends what rank 0 has kept to all. */
static int opened_share(open_file *opened, const bth_ranks *ranks, berth_error *error)
{
    file_head *head = &opened->head;
    uint64_t sizes[] = {opened->path ? strlen(opened->path) + 1 : 0, head->n, head->nbytes};
    int status = 0;

    if (bth_ranks_broadcast(ranks, sizes, sizeof sizes, error) < 0 ||
        bth_ranks_broadcast(ranks, &opened->facts, sizeof opened->facts, error) < 0)
        return error->code;
    if (ranks->rank != 0)
        status = opened_make_room(opened, sizes, error);
    if (bth_ranks_agree(ranks, status, error) < 0 ||
        bth_ranks_broadcast(ranks, opened->path, sizes[0], error) < 0 ||
        bth_ranks_broadcast(ranks, head->pieces, sizes[1] * sizeof *head->pieces, error) < 0)
        return error->code;
    return bth_ranks_broadcast(ranks, head->bytes, sizes[2], error);
}

/* The other ranks: the same file, and what rank 0 has read of it. */
static int opened_follow(open_file *opened, const berth_params *params, berth_error *error)
{
    file_facts facts;

    if (opened_open_file(opened, &facts, error) < 0)
        return error->code;
    if (facts.nbytes != opened->facts.nbytes || facts.seconds != opened->facts.seconds ||
        facts.nanoseconds != opened->facts.nanoseconds)
        return bth_mpi_fail(
            error, BERTH_E_ARGUMENT,
            "%s: is another file than rank 0 has there: it was replaced just now, so open "
            "it again; or the path leads to different files",
            opened->path);
    return opened_open_checkpoint(opened, params, error);
}

static int opened_open(open_file *opened, const bth_ranks *ranks, const char *path,
                       const berth_params *params, berth_error *error)
{
    int status = ranks->rank == 0 ? opened_record(opened, path, params, error) : 0;

    if (bth_ranks_agree(ranks, status, error) < 0 || opened_share(opened, ranks, error) < 0)
        return error->code;
    status = ranks->rank == 0 ? 0 : opened_follow(opened, params, error);
    return bth_ranks_agree(ranks, status, error);
}

void berth_mpi_close(berth_mpi_file *file)
{
    open_file *opened = (open_file *)file;

    if (!opened)
        return;
    berth_close(opened->file.checkpoint);
    if (opened->fd >= 0)
        (void)close(opened->fd);
    (void)pthread_mutex_destroy(&opened->lock);
    free(opened->head.pieces);
    free(opened->head.bytes);
    free(opened->path);
    free(opened);
}

static int opened_new(open_file **opened, berth_error *error)
{
    *opened = calloc(1, sizeof **opened);
    if (!*opened)
        return bth_mpi_fail_memory(error, sizeof **opened);
    (*opened)->fd = -1;
    (void)pthread_mutex_init(&(*opened)->lock, NULL);
    return 0;
}

int berth_mpi_open(MPI_Comm comm, const char *path, const berth_params *params,
                   berth_mpi_file **file, berth_error *error)
{
    berth_error own = {.code = BERTH_OK};
    open_file *made = NULL;
    bth_ranks ranks;

    if (file)
        *file = NULL;
    if (bth_ranks_begin(&ranks, comm, &own) < 0)
        return bth_mpi_end(&own, error);
    int status =
        file ? opened_new(&made, &own) : bth_mpi_fail(&own, BERTH_E_ARGUMENT, "file is NULL");
    /* The first that the ranks do: berth_mpi_agree meets it. */
    if (bth_ranks_agree(&ranks, status, &own) == 0 &&
        opened_open(made, &ranks, path, params, &own) == 0)
        *file = &made->file;
    else if (made)
        berth_mpi_close(&made->file);
    bth_ranks_end(&ranks);
    return bth_mpi_end(&own, error);
}
