/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Pickles that are no checkpoints: what they are, and what they name. tests/hostile/named.py has
 * all forms.
 */
#include "tests/support/load/archive.h"

#include <unistd.h>

TestSuite(pickle_kind, .init = begin_sample, .fini = end_sample);

#define NONE "neither a zip archive nor PyTorch's legacy format: it begins with "

typedef struct kind_case {
    const char *bytes;
    size_t nbytes;
    const char *says;
} kind_case;

#define BYTES(text) text, sizeof text - 1

/* The rest is behind the file. */
#define LESS_BY(n, text) text, sizeof text - 1 - (n)

#define NAMES "; it names "
#define NEVER ", which Berth never calls"
#define DCP "ctorch.distributed.checkpoint.metadata\nMetadata\n"

Test(pickle_kind, bare_and_legacy)
{
#define MAGIC "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
#define OLD(protocol)                                                                              \
    "in the legacy format, saved with pickle_protocol=" protocol                                   \
    ", which PyTorch's weights_only=True refuses, too: PyTorch (weights_only=False) saves it "     \
    "again, "                                                                                      \
    "but runs what is in it: only if you trust the file"
    static const kind_case cases[] = {
        {BYTES("\x80\x04K\x01."), "a bare pickle, not a PyTorch checkpoint"},
        {BYTES("\x80\x04\x8c\x25torch.distributed.checkpoint.metadata"),
         "the .metadata of a checkpoint of torch.distributed.checkpoint: `berth convert` makes a "
         "checkpoint of its directory"},
        {BYTES("\x80\2" DCP "."), "the .metadata of a checkpoint of torch.distributed.checkpoint: "
                                  "`berth convert` makes a checkpoint of its directory"},
        {BYTES("L119547037146038801333356L\n.I1001\n."),
         OLD("0 (whose tensors nobody can read) or 1")},
        {BYTES("L119547037146038801333356L\n.I1001\n.(d.cposix\nsystem\n."),
         "in the legacy format, saved with pickle_protocol=0 (whose tensors nobody can read) or 1, "
         "which PyTorch's weights_only=True refuses, too" NAMES "the global posix system" NEVER},
        {BYTES("\x80\4\x95\x0d\0\0\0\0\0\0\0" MAGIC), OLD("4")},
        {BYTES("\x80\5\x95\x0d\0\0\0\0\0\0\0" MAGIC), OLD("5")},
        {BYTES("\x80\2\x95\x0d\0\0\0\0\0\0\0" MAGIC), "a bare pickle, not a PyTorch checkpoint"},
        {LESS_BY(1, "\x80\4\x95\x0d\0\0\0\0\0\0\0" MAGIC),
         "a bare pickle, not a PyTorch checkpoint"},
        {BYTES("\x81\4\x95\x0d\0\0\0\0\0\0\0" MAGIC), NONE "81 04 95 0d"},
        {BYTES("\x80\4\x95\x0d\0\0\0\0\0\0\0\x8a\x0a"), "a bare pickle, not a PyTorch checkpoint"},
        {BYTES("\x80\x06"), NONE "80 06"},
        {BYTES("\x80"), NONE "80"},
        {BYTES("\x80\4\x8c\5posix\x94\x8c\6system\x94\x93."),
         "a bare pickle, not a PyTorch checkpoint" NAMES "the global posix system" NEVER},
        {BYTES("\x80\4\x83\x34\x12."),
         "a bare pickle, not a PyTorch checkpoint" NAMES "the global of extension code 4660" NEVER},
        {BYTES("(dp0\nVa\np1\nI1\ns."), "a bare pickle, not a PyTorch checkpoint"},
        {BYTES("cposix\nsystem\n(S'id'\ntR"),
         "a bare pickle, not a PyTorch checkpoint" NAMES "the global posix system" NEVER},
        {BYTES("\x80\2" DCP "cposix\nsystem\n."),
         "a bare pickle, not a PyTorch checkpoint" NAMES "the global posix system" NEVER},
        {BYTES("\x80\2" DCP "ctorch.distributed.checkpoint.metadata\nos.system\n."),
         "a bare pickle, not a PyTorch checkpoint" NAMES
         "the global torch.distributed.checkpoint.metadata os.system" NEVER},
        {BYTES("cposix\nsystem\n"), NONE "63 70 6f 73"},
        {BYTES("cposix\n\n(S'id'\ntR"), NONE "63 70 6f 73"},
        {BYTES("c\nsystem\n(S'id'\ntR"), NONE "63 0a 73 79"},
        {BYTES("checkpoint\nof the last epoch\n(S'a'\ntR"),
         "a text, not a checkpoint: a download that failed? It says: checkpoint of the last epoch "
         "(S'a' tR"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char message[700];
        (void)snprintf(message, sizeof message, "memory: %s", cases[i].says);
        expect_failure_of(cases[i].bytes, cases[i].nbytes, "", BERTH_E_NOT_CHECKPOINT, message);
    }
}

/* However many bytes an open has read: 64 KiB are looked at, of the legacy format those behind the
 * byte at which it is refused. */
Test(pickle_kind, the_part_of_a_pickle_that_is_looked_at)
{
    static const char global[] = "cposix\nsystem\n.", named[] = "names the global posix system";
    static const char legacy[] = "\x80\2" MAGIC "\x80\2M\xe9\3.\x80\2}.\x80\2";
    static const struct {
        const char *begin;
        size_t begin_nbytes, refused_at;
    } cases[] = {{BYTES("\x80\2"), 0}, {BYTES(legacy), sizeof legacy - 1}};
    enum { LOOKED_AT = 65536, NBYTES = 100000 };
    char *bytes = malloc(NBYTES), *place = test_folder_new();

    cr_assert(bytes && chdir(place) == 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t end = LOOKED_AT - 1; end <= LOOKED_AT + 1; end++) {
            char first[sizeof error.message];
            size_t n = cases[i].begin_nbytes, at = cases[i].refused_at + end - (sizeof global - 2);
            size_t text_nbytes = at - n - 6;
            memset(bytes, 'N', NBYTES);
            memcpy(bytes, cases[i].begin, n);
            memcpy(bytes + n, "0X", 2); /* POP, and a long text */
            for (size_t k = 0; k < 4; k++)
                bytes[n + 2 + k] = (char)(text_nbytes >> (8 * k));
            memcpy(bytes + at, global, sizeof global - 1);
            cr_expect_lt(open_bytes(bytes, NBYTES, ""), 0);
            (void)snprintf(first, sizeof first, "%s", strstr(error.message, ": "));
            cr_expect_eq(strstr(first, named) != NULL, end <= LOOKED_AT, "%zu: %s", end, first);
            test_write_file("a", bytes, NBYTES);
            cr_expect_lt(berth_open("a", only("load.head_nbytes=1", NULL), &checkpoint, &error), 0);
            cr_expect_str_eq(strstr(error.message, ": "), first);
        }
    free(bytes);
    test_folder_remove(place);
}

/* What the reader refuses it for stands first. */
Test(pickle_kind, of_checkpoints)
{
    static const struct {
        const char *bytes;
        size_t nbytes;
        int code;
        const char *says;
    } cases[] = {
        {BYTES("\x80\2" MAGIC "\x80\2M\xe9\3.\x80\2}.\x80\2"
               "0cposix\nsystem\n."),
         BERTH_E_FORBIDDEN,
         "object at byte 27: opcode POP (0x30) is not allowed in a checkpoint" NAMES
         "the global posix system" NEVER},
        {BYTES("\x80\2" MAGIC "\x80\2M\xea\3.\x80\2}.\x80\2cposix\nsystem\n.\x80\2]."),
         BERTH_E_PICKLE, "protocol version: not 1001" NAMES "the global posix system" NEVER},
        {BYTES("\x80\2" MAGIC "\x80\2M\xea\3.\x80\2}.\x80\2}.\x80\2]."), BERTH_E_PICKLE,
         "protocol version: not 1001"},
        {BYTES(
             "\x80\2" MAGIC
             "\x80\2M\xe9\3.\x80\2}U\x0dlittle_endian\x88s.\x80\2}]K\1scposix\nsystem\n.\x80\2]."),
         BERTH_E_UNSUPPORTED,
         "object at byte 48: SETITEM: a list cannot be a dict key" NAMES
         "the global posix system" NEVER},
        {BYTES("\x80\2" MAGIC "cposix\nsystem\n"), BERTH_E_TRUNCATED,
         "protocol version at byte 29: the pickle does not end here: no STOP yet" NAMES
         "the global posix system" NEVER},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char message[700];
        (void)snprintf(message, sizeof message, "memory: %s", cases[i].says);
        expect_failure_of(cases[i].bytes, cases[i].nbytes, "", cases[i].code, message);
    }
}

/* The same of an archive: a protocol that can be read with inert classes is told with the command
 * for it, also in front of what it names; but that the file was cut short comes first. */
Test(pickle_kind, of_archives)
{
#define PROTOCOL " is not allowed in a checkpoint: it was saved with pickle_protocol="
#define NOT_BY_PYTORCH ", which PyTorch's weights_only=True refuses, too: "
#define CONVERT                                                                                    \
    NOT_BY_PYTORCH "`berth convert --set load.unknown_globals=inert` saves it again without "      \
                   "running anything"
#define RESAVE                                                                                     \
    NOT_BY_PYTORCH "PyTorch (weights_only=False) saves it again, but runs what is in it: only if " \
                   "you trust the file"
    static const struct {
        const char *bytes;
        size_t nbytes, cut_nbytes;
        int code;
        const char *says;
    } cases[] = {
        {BYTES("\x80\4\x95\2\0\0\0\0\0\0\0}."), 0, BERTH_E_FORBIDDEN,
         "data.pkl at byte 66: opcode FRAME (0x95)" PROTOCOL "4" CONVERT},
        {BYTES("\x80\5\x8c\5posix\x94\x8c\6system\x94\x93."), 0, BERTH_E_FORBIDDEN,
         "data.pkl at byte 66: opcode SHORT_BINUNICODE (0x8c)" PROTOCOL "5" CONVERT NAMES
         "the global posix system" NEVER},
        {BYTES("(dp0\n."), 0, BERTH_E_FORBIDDEN,
         "data.pkl at byte 65: opcode DICT (0x64)" PROTOCOL
         "0 (whose tensors nobody can read) or 1" RESAVE},
        {BYTES("(d"), 0, BERTH_E_FORBIDDEN,
         "data.pkl at byte 65: opcode DICT (0x64)" PROTOCOL
         "0 (whose tensors nobody can read) or 1" RESAVE},
        {BYTES("\x80\2cposix\nsystem\n."), 0, BERTH_E_FORBIDDEN,
         "data.pkl at byte 66: global posix system is not allowed in a checkpoint "
         "(load.unknown_globals=inert lists such files without running anything)"},
        {BYTES("\x80\2cposix\nsystem\n."), 1, BERTH_E_ARCHIVE,
         "at byte 1794: the end record is cut off: 21 of its 22 bytes are there: a download or a "
         "save in place that did not end?"},
        {BYTES("\x80\2cposix\nsystem\n."), 22, BERTH_E_ARCHIVE,
         "no end record: not a zip archive, or cut off: a download or a save in place that did not "
         "end?"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_record("data.pkl", cases[i].bytes, cases[i].nbytes);
        build(NULL);
        char message[700];
        (void)snprintf(message, sizeof message, "memory: %s", cases[i].says);
        expect_failure_of(file, file_nbytes - cases[i].cut_nbytes, "", cases[i].code, message);
    }
}

/* A read that fails has left its bytes all the same. */
static int read_first_alone(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    memcpy(buffer, (const char *)context + offset, nbytes);
    return offset > 0 ? -1 : 0;
}

/* A read that fails while its global is looked for does not hide what it was refused for. */
Test(pickle_kind, where_no_more_can_be_read)
{
    char bytes[2000] = "\x80\2" MAGIC "\x80\2M\xe9\3.\x80\2}.\x80\2"
                       "0";
    const berth_source source = {
        .nbytes = sizeof bytes, .read = read_first_alone, .context = bytes};

    size_t n = strlen(bytes);
    memset(bytes + n, 'N', sizeof bytes - n);
    memcpy(bytes + 1000, "cposix\nsystem\n.", 15);
    cr_expect_eq(berth_open_source(&source, only("load.head_nbytes=1", NULL), &checkpoint, &error),
                 BERTH_E_FORBIDDEN);
    const char *says = strstr(error.message, "object at byte");
    cr_assert_not_null(says, "%s", error.message);
    cr_expect_str_eq(says, "object at byte 27: opcode POP (0x30) is not allowed in a checkpoint");
}

/* Want of memory is no refusal: nothing is said of what the pickle names. */
static void expect_nothing_named_without_memory(const void *bytes, size_t nbytes)
{
    struct test_refusals each = {.for_ever = true};

    while (test_refuse_next(&each)) {
        int code = berth_open_source(FROM_MEMORY(bytes, nbytes), NULL, &checkpoint, &error);
        bool refused = test_memory_refused();
        cr_expect_eq(code == BERTH_E_MEMORY, refused, "%s", error.message);
        cr_expect_eq(strstr(error.message, "names") != NULL, !refused, "%s", error.message);
    }
    cr_expect_gt(each.nth, 2);
}

Test(pickle_kind, where_memory_ends)
{
    static const char legacy[] = "\x80\2" MAGIC "\x80\2M\xe9\3.\x80\2}.\x80\2]cposix\nsystem\n.";
    static const char pickle[] = "\x80\2]0cposix\nsystem\n.";

    expect_nothing_named_without_memory(legacy, sizeof legacy - 1);
    set_record("data.pkl", pickle, sizeof pickle - 1);
    build(NULL);
    expect_nothing_named_without_memory(file, file_nbytes);
}

/* The members of a tar archive, each in blocks of 512 bytes. */
Test(pickle_kind, tar_files)
{
    static const char what[] = "memory: a tar file, as PyTorch wrote them before 2017";
    static const char global[] = "\x80\2cposix\nsystem\n.";
    static const struct {
        const char *nbytes; /* of the first member */
        size_t at;          /* of the global: in the first member, or in the second */
        bool is_named;
    } cases[] = {
        {"00000000022", 512, true},  {"00000000000", 1024, true},  {"00000000001", 1536, true},
        {"00000001000", 1536, true}, {"00000001001", 1536, false}, {"77777777777", 1536, false},
        {"00000000005", 512, false}, {"0000000002x", 1536, true},  {"000000 1000", 1536, true}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char bytes[2048] = "sys_info", message[300];
        memcpy(bytes + 257, "ustar", 5);
        memcpy(bytes + 124, cases[i].nbytes, 11);
        if (cases[i].at > 512)
            memcpy(bytes + cases[i].at - 512 + 124, "00000000022", 11);
        memcpy(bytes + cases[i].at, global, sizeof global - 1);
        (void)snprintf(message, sizeof message, "%s%s", what,
                       cases[i].is_named
                           ? NAMES "the global posix system" NEVER
                           : ": load it with PyTorch (weights_only=False) and save it again");
        expect_failure_of(bytes, sizeof bytes, "", BERTH_E_NOT_CHECKPOINT, message);
    }
}
