/* SPDX-License-Identifier: BSD-3-Clause */
/* F6: whoever could not read the inputs cannot read what is made of them. */
#include <berth/config.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "adapters/curl/berth_curl.h"
#include "tools/common/inputs.h"
#include "tools/common/options.h"
#include "tools/common/outputs.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"
#include "tools/common/urls.h"

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
    if (!readers.not_everyone || is_standard(out))
        return;
    bool for_group = !readers.not_group && folder_gives_group(out, readers.group);
    option_set_default("save.readers", for_group ? "group" : "owner");
}

/* ---- checks ---- */

int refuse_empty(const char *word)
{
    return *word ? 0 : print_trouble("a path is empty: a variable of the shell that is not set?");
}

/* A folder can be called "ftp:". */
int check_written_path(const char *word)
{
    if (refuse_empty(word))
        return EXIT_TROUBLE;
    char *folder = strndup(word, strcspn(word, "/"));
    bool is_there = folder && access(folder, F_OK) == 0;

    free(folder);
    if (berth_is_url(word))
        return print_trouble("%s: this is not written to a URL", word);
    return is_there ? 0 : check_scheme(word);
}

berth_target output_target(const char *word)
{
    return is_standard(word) ? berth_to_fd(STDOUT_FILENO) : berth_to_path(word);
}

int save_output(const char *word, const berth_content *content, const berth_params *params,
                berth_error *error)
{
    const berth_target target = output_target(word);
    const berth_upload_params upload = {.cancelled = signal_came};

    return berth_is_url(word) ? berth_save_url(kept_word(word), content, params, &upload, error)
                              : berth_save_to(&target, content, params, error);
}

int save_bytes(const char *word, const void *bytes, size_t nbytes)
{
    const berth_new_record record = {.name = "bytes", .nbytes = nbytes, .data = bytes};
    const berth_content content = berth_of_records(&record, 1, BERTH_RECORDS_PLAIN);
    berth_error error;

    return save_output(word, &content, NULL, &error) < 0 ? fail(&error) : 0;
}

bool is_written_url(const char *word)
{
    return strncasecmp(word, "s3://", strlen("s3://")) == 0;
}

/* Most of the time is waiting for the network. */
static int check_written_url(const char *word)
{
    if (!is_written_url(word))
        return print_trouble("%s: of URLs, only those with s3:// are written", word);
    option_set_default("io.threads", "8");
    option_set_default("io.chunk_nbytes", "8MiB");
    return 0;
}

int check_output(const char *word, const common *options)
{
    if (berth_is_url(word))
        return check_written_url(word);
    if (!is_standard(word))
        return check_written_path(word);
    if (options->json)
        return print_trouble("--json does not apply: standard output is for the file");
    if (isatty(STDOUT_FILENO))
        return print_trouble("a file is not written to a terminal: redirect standard output");
    return 0;
}

static bool is_same_file(const struct stat *one, const struct stat *other)
{
    return one->st_dev == other->st_dev && one->st_ino == other->st_ino;
}

int check_in_place_output_has_name(const char *in, const char *out)
{
    struct stat from, to, named;

    if (stat(in, &from) != 0 || stat(out, &to) != 0 || !is_same_file(&from, &to))
        return 0;
    char *path = realpath(out, NULL);
    bool has_name = path && stat(path, &named) == 0 && is_same_file(&named, &to);
    free(path);
    if (has_name)
        return 0;
    return print_trouble(
        "%s: input and output are one file without a name, which cannot be replaced", out);
}

int check_in_place_output_is_not_read(const char *out)
{
    struct stat open, to;
    bool is_read = false;

    if (is_standard(out) || stat(out, &to) != 0 || !S_ISREG(to.st_mode) ||
        !option_is("save.replace", "in_place"))
        return 0;
    DIR *descriptors = opendir("/proc/self/fd");
    for (const struct dirent *entry; descriptors && (entry = readdir(descriptors)) != NULL;) {
        int fd = (int)strtol(entry->d_name, NULL, 10);
        is_read |= entry->d_name[0] != '.' && fstat(fd, &open) == 0 && is_same_file(&open, &to) &&
                   (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
    }
    if (descriptors)
        (void)closedir(descriptors);
    if (!is_read)
        return 0;
    return print_trouble(
        "%s: is read, so it cannot be written in place: another name is needed for "
        "the output, or save.replace=auto",
        out);
}

int check_output_is_another_file(const char *in, const char *out)
{
    struct stat from, to;

    if (stat(in, &from) != 0 || stat(out, &to) != 0 || !is_same_file(&from, &to))
        return 0;
    return print_trouble("%s: is the input; another name is needed for the output", out);
}
