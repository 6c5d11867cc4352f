/* SPDX-License-Identifier: BSD-3-Clause */
/* F6: whoever could not read the inputs cannot read what is made of them. */
#include <berth/config.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "adapters/curl/berth_curl.h"
#include "tools/common/shared.h"

/* Who could read all of the inputs. An ACL can say anything, so it leaves the owner alone. */
static struct {
    bool not_everyone, not_group;
    bool has_group;
    gid_t group;
} readers;

static void note_file(const char *path)
{
    struct stat status;

    if (stat(path, &status) < 0 || !S_ISREG(status.st_mode))
        return;
    bool by_owner = (status.st_mode & 0400) || status.st_uid == geteuid();
    bool by_group = by_owner && (status.st_mode & 0040);
    bool by_mode = getxattr(path, "system.posix_acl_access", NULL, 0) < 0;
    if (by_mode && by_group && (status.st_mode & 0004))
        return;
    readers.not_everyone = true;
    readers.not_group |=
        !by_mode || !by_group || (readers.has_group && readers.group != status.st_gid);
    readers.has_group = true;
    readers.group = status.st_gid;
}

void note_standard_input(void)
{
    note_file(STDIN_PATH);
}

void note_input(const char *path)
{
    if (berth_is_url(path) || is_standard(path) || strcmp(path, STDIN_PATH) == 0)
        return;
    DIR *folder = opendir(path);
    if (!folder)
        note_file(path);
    for (const struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        char *file;
        if (asprintf(&file, "%s/%s", path, entry->d_name) < 0) {
            readers.not_everyone = readers.not_group = true; /* no memory */
            continue;
        }
        note_file(file);
        free(file);
    }
    if (folder)
        (void)closedir(folder);
}

/* Whether a new file there certainly gets this group, and no ACL. Mount options and the folder's
 * bits decide which of two groups it gets. */
static bool folder_gives_group(const char *out, gid_t group)
{
    const char *slash = strrchr(out, '/');
    char *folder = slash ? strndup(out, (size_t)(slash - out) + 1) : strdup(".");
    struct stat status;
    bool is_link = lstat(out, &status) == 0 && S_ISLNK(status.st_mode);
    bool does = folder && !is_link && stat(folder, &status) == 0 && status.st_gid == group &&
                getegid() == group && getxattr(folder, "system.posix_acl_default", NULL, 0) < 0;

    free(folder);
    return does;
}

void limit_readers_of(const char *out)
{
    if (!readers.not_everyone || is_standard(out) || !option_is_default("save.readers"))
        return;
    bool for_group = !readers.not_group && folder_gives_group(out, readers.group);
    (void)berth_config_set("save.readers", for_group ? "group" : "owner", NULL);
}
