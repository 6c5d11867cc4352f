/* SPDX-License-Identifier: BSD-3-Clause */
/* "-": standard input and output as files. */
#include <berth/config.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/curl/berth_curl.h"
#include "tools/shared.h"

bool is_standard(const char *word)
{
    return strcmp(word, "-") == 0;
}

/* A file from its beginning, which can be opened by its path as often as it is needed. */
static bool stdin_is_whole_file(void)
{
    struct stat status;

    return fstat(STDIN_FILENO, &status) == 0 && S_ISREG(status.st_mode) &&
           lseek(STDIN_FILENO, 0, SEEK_CUR) == 0 && access(STDIN_PATH, R_OK) == 0;
}

/* *max_nbytes: so much it may hold. Less than 0: none can be made, and why was printed. */
static int open_spool(uint64_t *max_nbytes)
{
    const char *folder = getenv("TMPDIR");
    berth_option limit;
    int fd;

    folder = folder && *folder ? folder : "/tmp";
    *max_nbytes = UINT64_MAX;
    fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        return fd;
    if (berth_config_describe(NULL, "io.memory_nbytes", &limit, NULL) == 0 && limit.number > 0)
        *max_nbytes = (uint64_t)limit.number;
    fd = memfd_create("standard input", MFD_CLOEXEC);
    if (fd < 0)
        (void)print_trouble("standard input: neither a temporary in %s nor memory: %s", folder,
                            strerror(errno));
    return fd;
}

static int write_all(int fd, const char *bytes, size_t nbytes)
{
    for (ssize_t n; nbytes > 0; bytes += n, nbytes -= (size_t)n)
        if ((n = write(fd, bytes, nbytes)) < 0)
            return print_trouble("standard input: its temporary: %s; TMPDIR names another folder",
                                 strerror(errno));
    return 0;
}

static int spool_stdin(int fd, uint64_t max_nbytes)
{
    enum { BUFFER_NBYTES = 1 << 20 };
    char *buffer = malloc(BUFFER_NBYTES);
    uint64_t total = 0;
    ssize_t n = 0;
    int code = buffer ? 0 : print_trouble("out of memory");

    while (!code && (n = read(STDIN_FILENO, buffer, BUFFER_NBYTES)) > 0) {
        total += (uint64_t)n;
        code =
            total > max_nbytes
                ? print_trouble("standard input: more than io.memory_nbytes, and no temporary can "
                                "be made; TMPDIR names another folder")
                : write_all(fd, buffer, (size_t)n);
    }
    if (!code && n < 0)
        code = print_trouble("standard input: %s", strerror(errno));
    free(buffer);
    return code;
}

/* A pipe is read once, into a file without a name, which takes its place. */
static int replace_stdin(void)
{
    uint64_t max_nbytes;

    if (isatty(STDIN_FILENO))
        return print_trouble("standard input is a terminal: redirect a file to it");
    int fd = open_spool(&max_nbytes);
    int code = fd < 0 ? EXIT_TROUBLE : spool_stdin(fd, max_nbytes);
    if (!code && dup2(fd, STDIN_FILENO) < 0)
        code = print_trouble("standard input: %s", strerror(errno));
    if (fd >= 0)
        (void)close(fd);
    return code;
}

/* U1: what follows the scheme is not shown, as there can be a password in it. */
static int check_scheme(const char *word)
{
    size_t n = strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-");

    if (n == 0 || strncmp(word + n, "://", 3) != 0 || berth_is_url(word) || access(word, F_OK) == 0)
        return 0;
    return print_trouble("%.*s://: of URLs, only those with https://, http:// and s3:// are read",
                         n < 32 ? (int)n : 32, word);
}

static int refuse_empty(const char *word)
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
        return print_trouble("%s: URLs are only read", word);
    return is_there ? 0 : check_scheme(word);
}

/* F1: a pipe is not waited for, and not read, because of its name alone. */
static int refuse_pipe(const char *word)
{
    static const char why[] = "is a pipe, which is read only as standard input";
    char path[1024];
    struct stat status;

    if (stat(word, &status) < 0 || !S_ISFIFO(status.st_mode))
        return 0;
    if (strncmp(word, "/dev/fd/", 8) == 0) /* made by a shell, which gives the next one its own */
        return print_trouble("%s: %s: in its place, `- < <(...)` reads it", word, why);
    if (is_shard_index(word)) /* its files lie beside it */
        return print_trouble("%s: is a pipe: an index is read only as a file", word);
    if (!print_word(word, path, sizeof path)) /* it cannot be shown */
        return print_trouble("%s: %s", word, why);
    return print_trouble("%s: %s: in its place, `- <%s` reads it", word, why, path);
}

const char *input_path(const char *word)
{
    static bool is_there;

    if (!is_standard(word) && strcmp(word, STDIN_PATH) != 0)
        return refuse_empty(word) || check_scheme(word) || refuse_pipe(word) ? NULL
                                                                             : resolve_folder(word);
    if (!is_there) {
        note_standard_input(); /* before a temporary takes its place */
        is_there = stdin_is_whole_file() || replace_stdin() == 0;
    }
    return is_there ? STDIN_PATH : NULL;
}

berth_target output_target(const char *word)
{
    return is_standard(word) ? berth_to_fd(STDOUT_FILENO) : berth_to_path(word);
}

int save_bytes(const char *word, const void *bytes, size_t nbytes)
{
    const berth_target target = output_target(word);
    const berth_new_record record = {.name = "bytes", .nbytes = nbytes, .data = bytes};
    const berth_content content = berth_of_records(&record, 1, BERTH_RECORDS_PLAIN);
    berth_error error;

    return berth_save_to(&target, &content, NULL, &error) < 0 ? fail(&error) : 0;
}

int check_output(const char *word, const common *options)
{
    if (!is_standard(word))
        return check_written_path(word);
    if (options->json)
        return print_trouble("--json does not apply: standard output is for the file");
    if (isatty(STDOUT_FILENO))
        return print_trouble("a file is not written to a terminal: redirect standard output");
    return 0;
}
