/* SPDX-License-Identifier: BSD-3-Clause */
/* The temporary file of a joint save, and its seal. */
#include "save/joint/joint_ticket.h"

#include <string.h>

#include "base/error.h"
#include "io/file.h"
#include "io/syscalls.h"
#include "save/commit.h"

#define SEAL_TEXT "Berth: a joint save, not finished\n"
#define TEXT_NBYTES (sizeof SEAL_TEXT - 1)
#define SEAL_NBYTES (TEXT_NBYTES + BTH_JOINT_IDENTITY_NBYTES)

static void seal_make(const uint8_t identity[BTH_JOINT_IDENTITY_NBYTES], uint8_t seal[SEAL_NBYTES])
{
    memcpy(seal, SEAL_TEXT, TEXT_NBYTES);
    memcpy(seal + TEXT_NBYTES, identity, BTH_JOINT_IDENTITY_NBYTES);
}

/* Other hosts see what was written when the file is closed (NFS). */
int bth_joint_file_seal(int fd, const uint8_t identity[BTH_JOINT_IDENTITY_NBYTES],
                        berth_error *error)
{
    uint8_t seal[SEAL_NBYTES];

    seal_make(identity, seal);
    if (bth_file_write(fd, seal, sizeof seal, 0, error) < 0)
        return error->code;
    bool is_synced;
    return bth_commit_sync_file(fd, BTH_DURABILITY_NONE, &is_synced, error);
}

/* J5 */
int bth_joint_file_open(const bth_ticket *ticket, int *fd, berth_error *error)
{
    uint8_t seal[SEAL_NBYTES], found[SEAL_NBYTES];
    uint64_t nbytes;
    int folder;

    *fd = -1;
    BTH_REPEAT(folder,
               bth_system.openat(AT_FDCWD, ticket->folder, O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
    if (folder < 0)
        return bth_fail_system(error, errno, "its folder %s cannot be opened", ticket->folder);
    BTH_REPEAT(*fd, bth_system.openat(folder, ticket->temporary,
                                      O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0));
    int failure = errno;
    bth_file_close(folder);
    if (*fd < 0 && failure == ENOENT)
        return bth_fail_system(error, failure,
                               "the save of this ticket has ended: its temporary %s is gone",
                               ticket->temporary);
    if (*fd < 0)
        return bth_fail_system(error, failure, "its temporary %s cannot be opened",
                               ticket->temporary);
    if (bth_file_size(*fd, &nbytes, error) < 0)
        return error->code;
    seal_make(ticket->identity, seal);
    if (nbytes < ticket->file_nbytes || bth_file_read(*fd, found, sizeof found, 0, error) < 0 ||
        memcmp(seal, found, sizeof seal) != 0) {
        bth_error_clear(error);
        return bth_fail_argument(error, "the ticket is of another save than the one that writes %s",
                                 ticket->temporary);
    }
    return 0;
}

int bth_joint_folder_path(int folder, char path[PATH_MAX], berth_error *error)
{
    char link[BTH_FILE_PATH_NBYTES];
    ssize_t n =
        bth_system.readlinkat(AT_FDCWD, bth_file_proc_path(folder, link), path, PATH_MAX - 1);

    if (n < 0)
        return bth_fail_system(error, errno, "the path of its folder cannot be found");
    path[n] = '\0';
    return path[0] == '/' ? 0 : bth_fail_argument(error, "its folder has no path");
}
