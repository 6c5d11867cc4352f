/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the ranks of tests/mpi/run do. Each writes what it got to FOLDER/said.RANK, one line a case:
 * name, status, message.
 *
 *     ranks whole FOLDER          one process saves the whole with berth_save
 *     ranks all FOLDER            saves, loads, errors, exchanges
 *     ranks read FOLDER           opens FOLDER/model.pt, then reads slices, for strace
 *     ranks bytes FOLDER FILE     reads slices in all placements, and counts what it reads
 *     ranks url FOLDER URL        saves there, by all
 *     ranks kill FOLDER RANK N    saves FOLDER/model.pt; RANK is killed at its Nth report
 */
#define _POSIX_C_SOURCE 200809L
#include <berth/more.h>
#include <berth_curl.h>
#include <berth_mpi.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/mpi/ranks/state.h"

static int world_rank, world_n;
static const char *folder;
static FILE *said;

static void say(const char *name, int status, const char *message)
{
    fprintf(said, "%s\t%s\t%s\n", name, berth_status_name(status), message);
}

static const char *path_of(const char *name)
{
    static char path[4096];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* What one rank gives: its slices, and the memory behind them. */
typedef struct gift {
    berth_tree *tree;
    berth_value *value;
    box parts[N_TENSORS];
    int32_t *bytes[N_TENSORS];
    berth_slice slices[N_TENSORS];
    size_t n_slices;
} gift;

static void give_values(gift *given)
{
    berth_value *list = berth_make_list(given->tree);

    berth_list_append(list, berth_make_float(given->tree, 0.5));
    berth_list_append(list, berth_make_none(given->tree));
    berth_dict_set(given->value, "epoch", berth_make_int(given->tree, 7));
    berth_dict_set(given->value, "name", berth_make_str(given->tree, "mpi", 3));
    berth_dict_set(given->value, "list", list);
}

static void give_tensor(gift *given, size_t tensor, bool has_bytes)
{
    box whole = whole_of(tensor);
    const void *data = BERTH_ELSEWHERE;

    if (has_bytes)
        data = given->bytes[tensor] = make_part(tensor, &whole);
    berth_dict_set(given->value, TENSORS[tensor].name,
                   berth_make_tensor(given->tree, &(berth_tensor){.dtype = BERTH_INT32,
                                                                  .rank = TENSORS[tensor].rank,
                                                                  .shape = TENSORS[tensor].shape,
                                                                  .data = data}));
}

static void give_slice(gift *given, MPI_Comm comm, size_t tensor)
{
    const char *name = TENSORS[tensor].name;
    box *part = &given->parts[tensor];
    int rank, n;

    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &n);
    *part = part_of(tensor, TENSORS[tensor].dealing, rank, n);
    int32_t *bytes = given->bytes[tensor] = make_part(tensor, part);
    berth_slice slice = berth_slice_of(name, part->starts, part->lengths, bytes);
    if (TENSORS[tensor].dealing == SHARED)
        slice = berth_mpi_share(comm, tensor, name,
                                (uint64_t)numel(TENSORS[tensor].rank, part->lengths) * 4, bytes);
    if (TENSORS[tensor].dealing != LAST || rank == n - 1)
        given->slices[given->n_slices++] = slice;
}

/* comm MPI_COMM_NULL: the whole, with all bytes. */
static void give(MPI_Comm comm, gift *given)
{
    const bool is_whole = comm == MPI_COMM_NULL;
    int rank = 0;

    *given = (gift){.tree = berth_tree_new(NULL)};
    if (!is_whole)
        MPI_Comm_rank(comm, &rank);
    given->value = berth_make_dict(given->tree, BERTH_KIND_ORDERED_DICT);
    for (size_t i = 0; i < N_TENSORS; i++) {
        deal dealing = TENSORS[i].dealing;
        give_tensor(given, i, is_whole || (dealing == FIRST && rank == 0));
        if (!is_whole && dealing != FIRST && dealing != NOBODY)
            give_slice(given, comm, i);
    }
    give_values(given);
}

static void take_back(gift *given)
{
    berth_tree_free(given->tree);
    for (size_t i = 0; i < N_TENSORS; i++)
        free(given->bytes[i]);
}

/* ---- saves and loads ---- */

static int save_whole(void)
{
    gift given;
    berth_error error;

    give(MPI_COMM_NULL, &given);
    int status = berth_save(path_of("model.pt"), given.value, NULL, &error);
    if (status < 0)
        fprintf(stderr, "%s\n", error.message);
    take_back(&given);
    return status < 0;
}

/* Only rank 0 has a value and a path. */
static void save(const char *name, MPI_Comm comm, const char *file)
{
    gift given;
    berth_error error = {.code = BERTH_OK};
    int rank;

    give(comm, &given);
    MPI_Comm_rank(comm, &rank);
    int status =
        berth_mpi_save(comm, rank == 0 ? path_of(file) : NULL, rank == 0 ? given.value : NULL,
                       given.slices, given.n_slices, NULL, &error);
    say(name, status, error.message);
    take_back(&given);
}

/* The base is the path itself; each says what it has shared. */
static void save_with_base(void)
{
    gift given;
    berth_stats stats;
    const berth_params params = {.base = path_of("model.pt"), .stats = &stats};
    berth_error error = {.code = BERTH_OK};
    char shared[128];

    give(MPI_COMM_WORLD, &given);
    int status = berth_mpi_save(MPI_COMM_WORLD, params.base, given.value, given.slices,
                                given.n_slices, &params, &error);
    snprintf(shared, sizeof shared, "%llu %s", (unsigned long long)stats.shared_nbytes,
             stats.base_reason ? stats.base_reason : "");
    say("base", status, status < 0 ? error.message : shared);
    take_back(&given);
}

static void save_to_url(const char *url)
{
    gift given;
    berth_error error = {.code = BERTH_OK};
    /* The smallest that S3 takes: 7 parts. */
    const berth_upload_params upload_params = {.part_nbytes = 5 << 20};

    give(MPI_COMM_WORLD, &given);
    int status = berth_mpi_save_url(MPI_COMM_WORLD, world_rank == 0 ? url : NULL,
                                    world_rank == 0 ? given.value : NULL, given.slices,
                                    given.n_slices, NULL, &upload_params, &error);
    say("url", status, error.message);
    take_back(&given);
}

/* Returns the bytes that were read; adds to *n_wrong what differs. */
static int64_t load_part(berth_checkpoint *checkpoint, size_t tensor, const box *part, int *n_wrong)
{
    int64_t n = numel(TENSORS[tensor].rank, part->lengths);
    int32_t *should = make_part(tensor, part), *is = malloc((size_t)n * sizeof *is + 1);
    berth_error error;
    const berth_tensor *found = berth_find_tensor(checkpoint, TENSORS[tensor].name, &error);

    if (!found ||
        berth_tensor_read_slice(checkpoint, found, part->starts, part->lengths, is, &error) < 0)
        say("slice", error.code, error.message);
    *n_wrong += memcmp(should, is, (size_t)n * sizeof *is) != 0;
    free(should);
    free(is);
    return n * 4;
}

/* Each rank reads a part of each tensor, by rows and by columns. */
static void load(const char *name, MPI_Comm comm, const char *path)
{
    berth_mpi_file *file;
    berth_error error;
    int rank, n, n_wrong = 0;
    char text[32];

    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &n);
    int status = berth_mpi_open(comm, rank == 0 ? path : NULL, NULL, &file, &error);
    if (status < 0) {
        say(name, status, error.message);
        return;
    }
    for (size_t i = 0; i < N_TENSORS; i++)
        for (int columns = 0; columns < (TENSORS[i].rank == 2 ? 2 : 1); columns++) {
            deal dealing = columns ? COLUMNS : ROWS;
            box part = part_of(i, TENSORS[i].rank == 0 ? SHARED : dealing, rank, n);
            (void)load_part(file->checkpoint, i, &part, &n_wrong);
        }
    int64_t epoch = 0;
    n_wrong += !berth_as_int(berth_find(file->checkpoint, "epoch", NULL), &epoch) || epoch != 7;
    snprintf(text, sizeof text, "%d wrong", n_wrong);
    say(name, 0, text);
    berth_mpi_close(file);
}

/* For strace: a call that nothing else makes parts the open from the reads. */
static void read_parts(void)
{
    berth_mpi_file *file;
    berth_error error;
    int64_t nbytes = 0;
    int n_wrong = 0;
    char text[64];

    int status = berth_mpi_open(MPI_COMM_WORLD, path_of("model.pt"), NULL, &file, &error);
    (void)access("/it/is/open", F_OK);
    for (size_t i = 0; status == 0 && i < N_TENSORS; i++)
        if (TENSORS[i].dealing == ROWS || TENSORS[i].dealing == COLUMNS) {
            box part = part_of(i, TENSORS[i].dealing, world_rank, world_n);
            nbytes += load_part(file->checkpoint, i, &part, &n_wrong);
        }
    snprintf(text, sizeof text, "%lld %d", (long long)nbytes, n_wrong);
    say("read", status, status < 0 ? error.message : text);
    if (status == 0)
        berth_mpi_close(file);
}

/* ---- how much is read ---- */

/* The bytes that this process has read, from whatever. */
static int64_t n_read(void)
{
    FILE *file = fopen("/proc/self/io", "r");
    long long nbytes = -1;

    if (!file || fscanf(file, "rchar: %lld", &nbytes) != 1)
        abort();
    fclose(file);
    return nbytes;
}

/* Says "WRONG LENGTH_OF_A_RUN GAP SLICE READ", lengths in bytes. */
static void read_and_count(berth_checkpoint *checkpoint, size_t tensor, const char *how,
                           const box *part)
{
    const long long row = TENSORS[tensor].shape[1] * 4, run = part->lengths[1] * 4;
    char name[64], text[128];
    int n_wrong = 0;
    int64_t before = n_read();
    const int64_t counted = n_read() - before; /* of counting itself */

    before = n_read();
    const int64_t nbytes = load_part(checkpoint, tensor, part, &n_wrong);
    const int64_t read_nbytes = n_read() - before - counted;
    snprintf(name, sizeof name, "%s %s", TENSORS[tensor].name, how);
    snprintf(text, sizeof text, "%d %lld %lld %lld %lld", n_wrong, run, row - run,
             (long long)nbytes, (long long)read_nbytes);
    say(name, 0, text);
}

static void count_parts(const char *path)
{
    berth_mpi_file *file;
    berth_error error;
    int i = world_rank, n = world_n;

    int status = berth_mpi_open(MPI_COMM_WORLD, path, NULL, &file, &error);
    say("bytes", status, error.message);
    for (size_t t = 0; status == 0 && t < N_TENSORS; t++) {
        if (TENSORS[t].rank != 2)
            continue;
        const box rows = part_of(t, ROWS, i, n), columns = part_of(t, COLUMNS, i, n);
        const box block = block_of(t, i, n), whole = whole_of(t);
        read_and_count(file->checkpoint, t, "rows", &rows);
        read_and_count(file->checkpoint, t, "columns", &columns);
        read_and_count(file->checkpoint, t, "blocks", &block);
        read_and_count(file->checkpoint, t, "replica", &whole);
    }
    if (status == 0)
        berth_mpi_close(file);
}

/* The first n ranks; in_reverse: the last is number 0. */
static MPI_Comm make_comm(int n, bool in_reverse)
{
    MPI_Comm comm;

    MPI_Comm_split(MPI_COMM_WORLD, world_rank < n ? 0 : MPI_UNDEFINED,
                   in_reverse ? -world_rank : world_rank, &comm);
    return comm;
}

static void save_and_load_by_some(void)
{
    for (int n = 1; n <= world_n; n++) {
        MPI_Comm comm = make_comm(n, false);
        char name[32], file[32];
        snprintf(name, sizeof name, "save %d", n);
        snprintf(file, sizeof file, "%d/model.pt", n);
        if (comm != MPI_COMM_NULL)
            save(name, comm, file);
        MPI_Barrier(MPI_COMM_WORLD);
        snprintf(name, sizeof name, "load %d", n);
        snprintf(file, sizeof file, "%d/model.pt", n == 1 ? 1 : n - 1);
        if (comm != MPI_COMM_NULL) {
            load(name, comm, path_of(file));
            MPI_Comm_free(&comm);
        }
    }
    MPI_Comm comm = make_comm(world_n, true);
    save("save reversed", comm, "reversed/model.pt");
    MPI_Comm_free(&comm);
}

/* ---- errors ---- */

static int cancel(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context;
    (void)done_nbytes;
    (void)total_nbytes;
    return 1;
}

static bool is(const char *name, const char *other)
{
    return strcmp(name, other) == 0;
}

/* Saves after something went wrong in one rank or two. */
static void fail_to_save(const char *name)
{
    gift given;
    const berth_params params = {.progress = cancel};
    const berth_slice *slices = given.slices;
    berth_error error;

    give(MPI_COMM_WORLD, &given);
    if (is(name, "slice outside") && world_rank >= 2)
        given.parts[0].starts[0] = 2000;
    if (is(name, "unknown name") && (world_rank == 1 || world_rank == 3))
        given.slices[0].name = "nothing";
    if (is(name, "nobody writes") && world_rank == 1)
        given.n_slices = 1;
    if (is(name, "two write") && world_rank == 1)
        given.slices[0].data = given.bytes[0], given.parts[0] = part_of(0, ROWS, 0, world_n);
    if (is(name, "NULL") && world_rank == 1)
        slices = NULL;
    int status = berth_mpi_save(
        MPI_COMM_WORLD, path_of(is(name, "no folder") ? "absent/model.pt" : "errors/model.pt"),
        is(name, "no value") && world_rank == 0 ? NULL : given.value, slices, given.n_slices,
        is(name, "cancelled") && world_rank == 1 ? &params : NULL, &error);
    say(name, status, error.message);
    take_back(&given);
}

static bool has_no_memory;
static void *reallocate(void *context, void *pointer, size_t nbytes)
{
    (void)context;
    return nbytes > 0 && has_no_memory ? NULL : realloc(pointer, nbytes);
}

/* Rank 2 leaves before the first exchange. */
static void fail_without_memory(void)
{
    gift given;
    berth_error error;

    berth_set_allocator(&(berth_allocator){.reallocate = reallocate});
    give(MPI_COMM_WORLD, &given);
    has_no_memory = world_rank == 2;
    int status = berth_mpi_save(MPI_COMM_WORLD, path_of("errors/model.pt"), given.value, NULL, 0,
                                NULL, &error);
    berth_set_allocator(NULL);
    say("no memory", status, error.message);
    take_back(&given);
}

/* One rank failed before the others began to save, or to open. */
static void give_up(const char *name, bool opens)
{
    gift given;
    berth_error error = {.code = BERTH_E_CALLBACK, .message = "the reactor is hot"};
    berth_mpi_file *file = NULL;
    int status;

    give(MPI_COMM_WORLD, &given);
    if (world_rank == 3)
        status = berth_mpi_agree(MPI_COMM_WORLD, &error);
    else if (opens)
        status = berth_mpi_open(MPI_COMM_WORLD, path_of("1/model.pt"), NULL, &file, &error);
    else
        status = berth_mpi_save(MPI_COMM_WORLD, path_of("errors/model.pt"), given.value,
                                given.slices, given.n_slices, NULL, &error);
    say(name, status, file ? "a file" : error.message);
    take_back(&given);
}

static void fail_to_open(const char *name, const char *path)
{
    berth_mpi_file *file, **place = &file;
    berth_error error;

    if (is(name, "nowhere to put it") && world_rank == 2)
        place = NULL;
    int status = berth_mpi_open(MPI_COMM_WORLD, path, NULL, place, &error);
    say(name, status, error.message);
    if (status == 0)
        berth_mpi_close(file);
}

/* Rank 2 is in another folder, where the path leads to something else. */
static void open_elsewhere(const char *name, const char *other)
{
    char here[4096];

    if (!getcwd(here, sizeof here) || chdir(path_of(world_rank == 2 ? other : "1")) < 0)
        abort();
    fail_to_open(name, "model.pt");
    if (chdir(here) < 0)
        abort();
}

static void fail_alone(void)
{
    MPI_Comm half, inter;
    berth_error error;

    int status = berth_mpi_save(MPI_COMM_NULL, "x.pt", NULL, NULL, 0, NULL, &error);
    say("no communicator", status, error.message);
    MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, 0, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, world_rank % 2 == 0, 7, &inter);
    status = berth_mpi_save(inter, "x.pt", NULL, NULL, 0, NULL, &error);
    say("two groups", status, error.message);
    MPI_Comm_free(&inter);
    MPI_Comm_free(&half);
}

static void agree(void)
{
    berth_error error = {.code = BERTH_OK};

    int status = berth_mpi_agree(MPI_COMM_WORLD, &error);
    say("all well", status, error.message);
    if (world_rank == 1)
        error = (berth_error){.code = BERTH_E_TIMEOUT};
    memset(error.message, 'x', world_rank == 1 ? sizeof error.message : 0); /* no NUL at its end */
    status = berth_mpi_agree(MPI_COMM_WORLD, &error);
    say("a long message", status, error.message[sizeof error.message - 1] ? "" : error.message);
}

static void fail(void)
{
    static const char *const saves[] = {"slice outside", "unknown name", "nobody writes",
                                        "two write",     "NULL",         "no folder",
                                        "no value",      "cancelled"};

    for (size_t i = 0; i < COUNT(saves); i++)
        fail_to_save(saves[i]);
    fail_without_memory();
    give_up("gave up saving", false);
    give_up("gave up opening", true);
    fail_to_open("no file", path_of("absent.pt"));
    fail_to_open("no checkpoint", path_of("broken.pt"));
    fail_to_open("a folder", folder);
    fail_to_open("no path", NULL);
    fail_to_open("nowhere to put it", path_of("1/model.pt"));
    open_elsewhere("absent elsewhere", "empty");
    open_elsewhere("another file elsewhere", "other");
    say("without an error",
        berth_mpi_save(MPI_COMM_WORLD, path_of("absent/model.pt"), NULL, NULL, 0, NULL, NULL), "");
    fail_alone();
    agree();
}

/* ---- bytes of all to all ---- */

/* From one rank to another, in one of several rounds: also none, and more than a page. */
static uint64_t sent_nbytes(int from, int to, int round)
{
    return (uint64_t)((from * 7 + to * 3 + round) % 5) * (round == 2 ? 100003 : 11);
}

static uint8_t sent_byte(int from, int to, uint64_t i)
{
    return (uint8_t)(from * 31 + to * 17 + (int)(i % 251));
}

static int exchange_round(int round, int *n_wrong)
{
    uint64_t send_nbytes[8], receive_nbytes[8], send_at = 0, receive_at = 0;
    uint8_t *send = malloc(8 * 500000), *receive = malloc(8 * 500000);
    MPI_Comm comm = MPI_COMM_WORLD;

    for (int to = 0; to < world_n; to++) {
        send_nbytes[to] = sent_nbytes(world_rank, to, round);
        receive_nbytes[to] = sent_nbytes(to, world_rank, round);
        for (uint64_t i = 0; send && i < send_nbytes[to]; i++)
            send[send_at++] = sent_byte(world_rank, to, i);
    }
    int result = berth_mpi_exchange(&comm, send, send_nbytes, receive, receive_nbytes);
    for (int from = 0; from < world_n; from++)
        for (uint64_t i = 0; receive && i < receive_nbytes[from]; i++)
            *n_wrong += receive[receive_at++] != sent_byte(from, world_rank, i);
    free(send);
    free(receive);
    return result;
}

static void exchange(void)
{
    static const uint64_t none[8], large[8] = {INT_MAX, 1}, huge[8] = {UINT64_MAX};
    MPI_Comm comm = MPI_COMM_WORLD;
    int n_wrong = 0, result = 0;
    char text[96];

    for (int round = 0; round < 5; round++)
        result |= exchange_round(round, &n_wrong);
    snprintf(text, sizeof text, "%d, %d wrong, %d", result, n_wrong,
             berth_mpi_exchange(&comm, NULL, none, NULL, none));
    say("exchange", 0, text);
    snprintf(
        text, sizeof text, "%d %d",
        berth_mpi_exchange(&comm, NULL, world_rank == 1 ? large : none, NULL, none) == EMSGSIZE,
        berth_mpi_exchange(&comm, NULL, none, NULL, world_rank == 2 ? huge : none) == EMSGSIZE);
    say("exchange of too much", 0, text);
}

/* ---- a rank is killed ---- */

static int reports_left;

static int die_at_report(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context;
    (void)done_nbytes;
    (void)total_nbytes;
    if (--reports_left == 0)
        raise(SIGKILL);
    return 0;
}

static void save_and_die(int rank, int n_reports)
{
    gift given;
    const berth_params params = {.progress = die_at_report};
    berth_error error;

    give(MPI_COMM_WORLD, &given);
    reports_left = n_reports;
    int status = berth_mpi_save(MPI_COMM_WORLD, path_of("model.pt"), given.value, given.slices,
                                given.n_slices, world_rank == rank ? &params : NULL, &error);
    say("survived", status, error.message);
    take_back(&given);
}

int main(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[1] : "";
    berth_error error;

    folder = argc > 2 ? argv[2] : ".";
    if (is(what, "whole"))
        return save_whole();
    int status = berth_mpi_save(MPI_COMM_WORLD, "x.pt", NULL, NULL, 0, NULL, &error);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_n);
    char name[32];
    snprintf(name, sizeof name, "said.%d", world_rank);
    said = fopen(path_of(name), "w");
    if (!said)
        return 1;
    say("before MPI_Init", status, error.message);
    if (is(what, "all")) {
        save_and_load_by_some();
        fail();
        exchange();
    } else if (is(what, "read")) {
        read_parts();
    } else if (is(what, "bytes") && argc == 4) {
        count_parts(argv[3]);
    } else if (is(what, "base")) {
        save_with_base();
    } else if (is(what, "url") && argc == 4) {
        save_to_url(argv[3]);
    } else if (argc == 5) {
        save_and_die(atoi(argv[3]), atoi(argv[4]));
    }
    fclose(said);
    MPI_Finalize();
    return 0;
}
