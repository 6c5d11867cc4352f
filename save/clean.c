/* SPDX-License-Identifier: BSD-3-Clause */
/* Temporaries of killed saves in a folder (X5): reports them, and removes those of dead saves. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "io/file.h"
#include "io/syscalls.h"
#include "save/save_error.h"
#include "save/temporary.h"

typedef struct cleaning {
    int folder;
    double now; /* seconds since 1970 */
    bool remove;
    double min_age_seconds;
    berth_temporary_function report;
    void *context;
} cleaning;

static double timespec_to_seconds(const struct timespec *time)
{
    return (double)time->tv_sec + (double)time->tv_nsec * 1e-9;
}

/* A file of an unknown process: writes to it would change its time. */
static bool clean_may_remove(const cleaning *clean, const berth_temporary *found)
{
    if (found->state == BERTH_TEMPORARY_DEAD)
        return true;
    return found->state == BERTH_TEMPORARY_UNKNOWN && found->age_seconds >= clean->min_age_seconds;
}

/* No failure: the file is gone, or another process claimed it to remove it. */
static void clean_remove_temporary(const cleaning *clean, const char *name,
                                   bth_temporary_file *file, berth_temporary *found,
                                   berth_error *why)
{
    found->removed = bth_temporary_claim_and_remove(clean->folder, name, file,
                                                    found->age_seconds >= clean->min_age_seconds);
    if (found->removed || errno == 0 || errno == ENOENT || errno == EEXIST)
        return;
    (void)bth_fail_errno(why, errno, NULL, BERTH_NO_OFFSET, "%s cannot be removed", name);
    found->error = why;
}

static void clean_remove_and_report_entry(const cleaning *clean, const char *name)
{
    bth_temporary_file file;
    berth_error why;

    if (!bth_temporary_is_name(name) || !bth_temporary_open(clean->folder, name, &file))
        return;
    double changed = timespec_to_seconds(&file.status.st_mtim), age = clean->now - changed;
    berth_temporary found = {.name = name,
                             .nbytes = (uint64_t)file.status.st_size,
                             .age_seconds = age > 0 ? age : 0,
                             .state = file.state,
                             .owner = file.owner};
    bth_error_clear(&why);
    if (clean->remove && clean_may_remove(clean, &found))
        clean_remove_temporary(clean, name, &file, &found, &why);
    clean->report(clean->context, &found);
    bth_file_close(file.fd);
}

static int clean_folder(const cleaning *clean, berth_error *error)
{
    /* getdents64 fills it with aligned entries of different lengths. */
    _Alignas(struct dirent64) char entries[8192];
    ssize_t n;

    while ((n = bth_system.getdents64(clean->folder, entries, sizeof entries)) > 0) {
        for (ssize_t at = 0; at < n;) {
            const struct dirent64 *entry = (const void *)(entries + at);
            clean_remove_and_report_entry(clean, entry->d_name);
            at += entry->d_reclen;
        }
    }
    if (n < 0)
        return bth_fail_system(error, errno, "cannot be listed");
    return 0;
}

int berth_clean_temporaries(const char *folder, uint32_t flags, double min_age_seconds,
                            berth_temporary_function report, void *context, berth_error *error)
{
    cleaning clean = {.remove = flags & BERTH_CLEAN_REMOVE,
                      .min_age_seconds = min_age_seconds,
                      .report = report,
                      .context = context};
    struct timespec now = {0};

    BTH_ERROR_BEGIN(error);
    if (!folder || !report || (flags & ~BERTH_CLEAN_REMOVE))
        return bth_fail_argument(error, "%s",
                                 !folder   ? "the folder is NULL"
                                 : !report ? "the function is NULL"
                                           : "unknown flags");
    do
        clean.folder = bth_system.openat(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    while (clean.folder < 0 && errno == EINTR);
    if (clean.folder < 0)
        (void)bth_fail_system(error, errno, "cannot be opened");
    else {
        (void)clock_gettime(CLOCK_REALTIME, &now);
        clean.now = timespec_to_seconds(&now);
        (void)clean_folder(&clean, error);
        bth_file_close(clean.folder);
    }
    return bth_error_prefix(error, folder);
}
