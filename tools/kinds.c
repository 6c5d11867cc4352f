/* SPDX-License-Identifier: BSD-3-Clause */
/* What a file is that people confuse with a checkpoint, and that the library does not know. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "adapters/curl/berth_curl.h"
#include "tools/shared.h"

static const struct signature {
    const char *bytes;
    size_t nbytes, at;
    const char *what;
} signatures[] = {
#define AT(at, bytes, what)                                                                        \
    {                                                                                              \
        bytes, sizeof(bytes) - 1, at, what                                                         \
    }
    AT(0, "lmgg", "a ggml file, the format of llama.cpp before GGUF"),
    AT(0, "tjgg", "a ggml file (ggjt), the format of llama.cpp before GGUF"),
    AT(0, "fmgg", "a ggml file (ggmf), the format of llama.cpp before GGUF"),
    AT(0, "\4\0\0\0\1\0\0\0",
       "a file of Torch7 (Lua), which PyTorch below 1.0 could read (load_lua)"),
    AT(0, "\x89PNG\r\n\x1a\n", "a PNG picture"),
    AT(0, "\xff\xd8\xff", "a JPEG picture"),
    AT(0,
       "\x7f"
       "ELF",
       "an ELF program or library"),
    AT(4, "TFL3", "a TensorFlow Lite model"),
    AT(4, "ET12", "a program of ExecuTorch (.pte)"),
    AT(0, "%PDF-", "a PDF document"),
    AT(0, "SQLite format 3", "an SQLite database"),
    AT(0, "PAR1", "a Parquet table"),
#undef AT
};

enum { ZEROS_NBYTES = 1 << 16 };

static bool all_are_zero(const unsigned char *bytes, size_t n)
{
    return n > 0 && bytes[0] == 0 && !memcmp(bytes, bytes + 1, n - 1);
}

void explain_kind(const char *path, berth_error *error)
{
    static unsigned char bytes[ZEROS_NBYTES];
    const char *what = NULL;

    if (error->code != BERTH_E_NOT_CHECKPOINT || berth_is_url(path) ||
        !strstr(error->message, ": neither a zip archive"))
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd >= 0 ? pread(fd, bytes, sizeof bytes, 0) : -1;
    if (fd >= 0)
        (void)close(fd);
    for (size_t i = 0; i < sizeof signatures / sizeof *signatures && n > 0 && !what; i++)
        if ((size_t)n >= signatures[i].at + signatures[i].nbytes &&
            !memcmp(bytes + signatures[i].at, signatures[i].bytes, signatures[i].nbytes))
            what = signatures[i].what;
    if (!what && n > 0 && all_are_zero(bytes, (size_t)n))
        what = "nothing but zeros (a download or a copy that did not end?)";
    if (!what)
        return;
    char *at = strstr(error->message, ": neither a zip archive") + 2;
    snprintf(at, sizeof error->message - (size_t)(at - error->message), "%s, not a checkpoint",
             what);
}
