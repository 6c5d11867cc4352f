/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/faults/power.h"

struct power power = {.lock = PTHREAD_MUTEX_INITIALIZER};
static bth_system_table beneath;

static int power_find(const power_folder *in, const char *name)
{
    for (int i = 0; i < POWER_MAX_NAMES; i++)
        if (strcmp(in->entries[i].name, name) == 0)
            return i;
    return -1;
}

int power_file_named(const power_folder *in, const char *name)
{
    int i = power_find(in, name);

    return i < 0 ? -1 : in->entries[i].file;
}

static void power_name(power_folder *in, const char *name, int file)
{
    int i = power_find(in, name);

    if (i < 0)
        i = power_find(in, "");
    cr_assert_geq(i, 0, "more names than the model has room for");
    snprintf(in->entries[i].name, sizeof in->entries[i].name, "%s", name);
    in->entries[i].file = file;
}

static void power_unname(power_folder *in, const char *name)
{
    int i = power_find(in, name);

    if (i >= 0)
        in->entries[i].name[0] = '\0';
}

static void power_apply(power_folder *in, const power_event *event)
{
    if (event->kind == POWER_CREATE)
        power_name(in, event->name, event->file);
    else if (event->kind == POWER_RENAME) {
        power_unname(in, event->name);
        power_name(in, event->to, event->file);
    } else if (event->kind == POWER_UNLINK)
        power_unname(in, event->name);
}

static int power_add_file(int fd)
{
    struct stat status;

    cr_assert_eq(fstat(fd, &status), 0);
    cr_assert_lt(power.n_files, POWER_MAX_FILES);
    power.files[power.n_files].device = status.st_dev;
    power.files[power.n_files].number = status.st_ino;
    return power.n_files++;
}

/* The youngest of that inode: numbers are used again. -1: none, so a folder. */
static int power_file_of(int fd)
{
    struct stat status;

    cr_assert_eq(fstat(fd, &status), 0);
    for (int i = power.n_files; i-- > 0;)
        if (power.files[i].device == status.st_dev && power.files[i].number == status.st_ino)
            return i;
    cr_assert(S_ISDIR(status.st_mode), "a file that nobody made is changed");
    return -1;
}

power_event *power_note(enum power_kind kind, int file)
{
    static power_event nowhere;

    nowhere = (power_event){0};
    if (power.forget[kind])
        return &nowhere;
    power.events = realloc(power.events, (power.n_events + 1) * sizeof *power.events);
    cr_assert_not_null(power.events);
    power.events[power.n_events] = (power_event){.kind = kind, .file = file};
    return &power.events[power.n_events++];
}

static int power_openat(int in, const char *name, int flags, mode_t mode)
{
    int fd = beneath.openat(in, name, flags, mode);

    if (fd < 0 || !(flags & O_CREAT))
        return fd;
    pthread_mutex_lock(&power.lock);
    power_event *event = power_note(POWER_CREATE, power_add_file(fd));
    snprintf(event->name, sizeof event->name, "%s", name);
    power_apply(&power.now, event);
    pthread_mutex_unlock(&power.lock);
    return fd;
}

static void power_note_write(int fd, const void *buffer, ssize_t nbytes, off_t offset)
{
    if (nbytes <= 0)
        return;
    pthread_mutex_lock(&power.lock);
    power_event *event = power_note(POWER_WRITE, power_file_of(fd));
    event->offset = (uint64_t)offset;
    event->nbytes = (uint64_t)nbytes;
    event->bytes = malloc((size_t)nbytes);
    cr_assert_not_null(event->bytes);
    memcpy(event->bytes, buffer, (size_t)nbytes);
    pthread_mutex_unlock(&power.lock);
}

static ssize_t power_pwrite(int fd, const void *buffer, size_t nbytes, off_t offset)
{
    ssize_t n = beneath.pwrite(fd, buffer, nbytes, offset);
    int failure = errno;

    power_note_write(fd, buffer, n, offset);
    errno = failure;
    return n;
}

static ssize_t power_pwritev(int fd, const struct iovec *pieces, int n_pieces, off_t offset)
{
    ssize_t n = beneath.pwritev(fd, pieces, n_pieces, offset);
    int failure = errno;

    for (ssize_t left = n; left > 0; pieces++) {
        ssize_t share = (ssize_t)pieces->iov_len < left ? (ssize_t)pieces->iov_len : left;
        power_note_write(fd, pieces->iov_base, share, offset);
        offset += share;
        left -= share;
    }
    errno = failure;
    return n;
}

static int power_note_size(int result, enum power_kind kind, int fd, off_t nbytes)
{
    int failure = errno;

    if (result == 0) {
        pthread_mutex_lock(&power.lock);
        power_note(kind, power_file_of(fd))->offset = (uint64_t)nbytes;
        pthread_mutex_unlock(&power.lock);
    }
    errno = failure;
    return result;
}

static int power_fallocate(int fd, int mode, off_t offset, off_t nbytes)
{
    return power_note_size(beneath.fallocate(fd, mode, offset, nbytes), POWER_GROW, fd,
                           offset + nbytes);
}

static int power_ftruncate(int fd, off_t nbytes)
{
    return power_note_size(beneath.ftruncate(fd, nbytes), POWER_CUT, fd, nbytes);
}

static int power_note_sync(int result, int fd)
{
    int failure = errno;

    if (result == 0) {
        pthread_mutex_lock(&power.lock);
        int file = power_file_of(fd);
        (void)power_note(file < 0 ? POWER_SYNC_FOLDER : POWER_SYNC, file);
        pthread_mutex_unlock(&power.lock);
    }
    errno = failure;
    return result;
}

static int power_fsync(int fd)
{
    return power_note_sync(beneath.fsync(fd), fd);
}

static int power_fdatasync(int fd)
{
    return power_note_sync(beneath.fdatasync(fd), fd);
}

static int power_renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    int result = beneath.renameat(from_folder, from, to_folder, to);

    if (result < 0)
        return result;
    power_event *event = power_note(POWER_RENAME, power_file_named(&power.now, from));
    snprintf(event->name, sizeof event->name, "%s", from);
    snprintf(event->to, sizeof event->to, "%s", to);
    power_apply(&power.now, event);
    return result;
}

static int power_unlinkat(int in, const char *name, int flags)
{
    int result = beneath.unlinkat(in, name, flags);

    if (result < 0)
        return result;
    power_event *event = power_note(POWER_UNLINK, power_file_named(&power.now, name));
    snprintf(event->name, sizeof event->name, "%s", name);
    power_apply(&power.now, event);
    return result;
}

static void power_add_old(const char *name, const char *at)
{
    if (access(at, F_OK) != 0)
        return;
    int fd = open(at, O_RDONLY | O_CLOEXEC);
    size_t nbytes;
    int file = power_add_file(fd);
    power.files[file].bytes = test_read_file(at, &nbytes);
    power.files[file].nbytes = nbytes;
    power_name(&power.before, name, file);
    close(fd);
}

void power_add_version(unsigned version)
{
    if (access(path, F_OK) == 0)
        power.versions[version].bytes = test_read_file(path, &power.versions[version].nbytes);
}

void power_begin(void)
{
    power_add_old("model.pt", path);
    power_add_old(strrchr(leftover_path, '/') + 1, leftover_path);
    power_add_version(0);
    power.now = power.before;
    beneath = bth_system;
    bth_system.openat = power_openat;
    bth_system.pwrite = power_pwrite;
    bth_system.pwritev = power_pwritev;
    bth_system.fallocate = power_fallocate;
    bth_system.ftruncate = power_ftruncate;
    bth_system.fsync = power_fsync;
    bth_system.fdatasync = power_fdatasync;
    bth_system.renameat = power_renameat;
    bth_system.unlinkat = power_unlinkat;
}

void power_end(void)
{
    fault_clear();
    for (size_t i = 0; i < power.n_events; i++)
        free(power.events[i].bytes);
    for (int i = 0; i < power.n_files; i++)
        free(power.files[i].bytes);
    for (int i = 0; i < POWER_MAX_VERSIONS; i++)
        free(power.versions[i].bytes);
    free(power.events);
    power.events = NULL;
    power.n_events = 0;
    power.n_files = 0;
    memset(power.files, 0, sizeof power.files);
    memset(power.versions, 0, sizeof power.versions);
    memset(&power.before, 0, sizeof power.before);
}

static bool power_survives(power_fate *fate)
{
    size_t i = fate->n_blocks++;

    switch (fate->choice) {
    case KEEP_ALL:
        return true;
    case KEEP_NONE:
        return false;
    case KEEP_ONE:
        return i == fate->which;
    case LOSE_ONE:
        return i != fate->which;
    default:
        fate->random = fate->random * 1664525 + 1013904223;
        return fate->random >> 31;
    }
}

static void power_resize(power_content *content, uint64_t nbytes)
{
    if (nbytes > content->room) {
        content->room = (size_t)nbytes * 2;
        content->bytes = realloc(content->bytes, content->room);
        cr_assert_not_null(content->bytes);
    }
    if (nbytes > content->nbytes)
        memset(content->bytes + content->nbytes, 0, (size_t)nbytes - content->nbytes);
    content->nbytes = (size_t)nbytes;
}

/* Block by block of the file: 4 KiB, or sectors. */
static void power_write(power_content *content, const power_event *event, bool synced,
                        power_fate *fate)
{
    uint64_t grain = fate->choice == KEEP_SOME_SECTORS ? 512 : 4096;

    for (uint64_t done = 0; done < event->nbytes;) {
        uint64_t at = event->offset + done;
        uint64_t n = grain - at % grain;
        if (n > event->nbytes - done)
            n = event->nbytes - done;
        if (synced || power_survives(fate)) {
            if (at + n > content->nbytes)
                power_resize(content, at + n);
            memcpy(content->bytes + at, event->bytes + done, (size_t)n);
        }
        done += n;
    }
}

void power_content_of(int file, size_t moment, power_fate *fate, power_content *content)
{
    size_t n_synced = 0;

    for (size_t i = 0; i < moment; i++)
        if (power.events[i].kind == POWER_SYNC && power.events[i].file == file)
            n_synced = i;
    content->nbytes = 0;
    power_resize(content, power.files[file].nbytes);
    if (power.files[file].nbytes > 0)
        memcpy(content->bytes, power.files[file].bytes, content->nbytes);
    fate->n_blocks = 0;
    for (size_t i = 0; i < moment; i++) {
        const power_event *event = &power.events[i];
        if (event->file != file || event->kind > POWER_CUT)
            continue;
        if (event->kind == POWER_WRITE)
            power_write(content, event, i < n_synced, fate);
        else if ((i < n_synced || power_survives(fate)) &&
                 (event->kind == POWER_CUT || event->offset > content->nbytes))
            power_resize(content, event->offset);
    }
}

unsigned power_folder_of(size_t moment, uint64_t subset, power_folder *left)
{
    size_t n_synced = 0;
    unsigned n = 0;

    for (size_t i = 0; i < moment; i++)
        if (power.events[i].kind == POWER_SYNC_FOLDER)
            n_synced = i;
    *left = power.before;
    for (size_t i = 0; i < moment; i++) {
        const power_event *event = &power.events[i];
        if (event->kind < POWER_CREATE || event->kind > POWER_UNLINK)
            continue;
        if (i < n_synced || (subset >> n++ & 1))
            power_apply(left, event);
    }
    return n;
}
