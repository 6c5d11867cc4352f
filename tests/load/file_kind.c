/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What files are that are no checkpoints: one sentence for each kind. tests/command/kinds.py has
 * the same kinds as the real tools make them.
 */
#include "tests/support/format/zip_builder.h"
#include "tests/support/load/archive.h"

#include <unistd.h>

TestSuite(file_kind, .init = begin_sample, .fini = end_sample);

#define NONE "neither a zip archive nor PyTorch's legacy format: it begins with "
#define DOWNLOAD ", not a checkpoint: a download that failed?"
#define SAYS DOWNLOAD " It says: "
#define HUNDRED                                                                                    \
    "01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901" \
    "23456789"
#define FIVE(text) text text text text text

/* A zip's local header from its version to the size of the name. */
#define HEADER_1 "\x14\0\0\0\0\0\0\0\0\0\0"
#define HEADER_2 "\0\0\0\0\0\0\0\0\0\0\0"

/* ---- by the first bytes ---- */

typedef struct kind_case {
    const char *bytes;
    size_t nbytes;
    const char *says;
} kind_case;

#define BYTES(text) text, sizeof text - 1

static void expect_kinds(const kind_case *cases, size_t n)
{
    char message[700];

    for (size_t i = 0; i < n; i++) {
        (void)snprintf(message, sizeof message, "memory: %s", cases[i].says);
        expect_failure_of(cases[i].bytes, cases[i].nbytes, "", BERTH_E_NOT_CHECKPOINT, message);
    }
}

#define EXPECT_KINDS(cases) expect_kinds(cases, sizeof cases / sizeof *cases)

Test(file_kind, by_their_signatures)
{
#define GGML(name) "a ggml file (" name "), the format of llama.cpp before GGUF, not a checkpoint"
    static const kind_case cases[] = {
        {BYTES("PK\5\6"), "a zip archive without any record"},
        {BYTES("\x1f\x8b"), "compressed by gzip: `gzip -dc` unpacks it"},
        {BYTES("\xfd"
               "7zXZ\0"),
         "compressed by xz: `xz -dc` unpacks it"},
        {BYTES("\x28\xb5\x2f\xfd"), "compressed by zstd: `zstd -dc` unpacks it"},
        {BYTES("\x04\x22\x4d\x18"), "compressed by lz4: `lz4 -dc` unpacks it"},
        {BYTES("BZh"), "compressed by bzip2: `bzip2 -dc` unpacks it"},
        {BYTES("\x1f\x9d"), "compressed by compress: `gzip -dc` unpacks it"},
        {BYTES("\x5d\0\0"), "compressed by lzma: `xz -dc` unpacks it"},
        {BYTES("UEsDBA=="), "a zip archive in base64: `base64 -d` decodes it"},
        {BYTES("Salted__\1"), "encrypted by openssl: `openssl enc -d` decrypts it"},
        {BYTES("PK\7\10PK\3\4"),
         "a part of a zip archive in several files: `zip -s 0 NAME.zip --out NEW.zip` joins them"},
        {BYTES("HTTP/1.1 200 OK\r\n\r\nPK\3\4"),
         "a download with the server's header in front of it: `curl` without `-i` leaves that out"},
        {BYTES("7z\xbc\xaf\x27\x1c"), "a 7z archive: `7z x` unpacks it"},
        {BYTES("Rar!\x1a\x07"), "a rar archive: `unrar x` unpacks it"},
        {BYTES("GGUF"), "a GGUF file, the format of llama.cpp, not of PyTorch: `gguf-dump` (of "
                        "Python's package gguf) lists it"},
        {BYTES("\x89HDF\r\n\x1a\n"),
         "an HDF5 file, as Keras and h5py write them, not PyTorch: `h5ls -r` lists it"},
        {BYTES("\x93NUMPY"),
         "an array of NumPy (.npy), not a PyTorch checkpoint: torch.from_numpy(numpy.load(f)) is "
         "its tensor if it holds numbers in this machine's byte order"},
        {BYTES("lmgg\1"), GGML("ggml")},
        {BYTES("fmgg"), GGML("ggmf")},
        {BYTES("tjgg"), GGML("ggjt")},
        {BYTES("\4\0\0\0\1\0\0\0\3"),
         "a file of Torch7 (Lua), not a checkpoint of PyTorch, which read such files before 1.0"},
        {BYTES("\3\0\0\0\1\0\0\0\2"),
         "a file of Torch7 (Lua), not a checkpoint of PyTorch, which read such files before 1.0"},
        {BYTES("\x89PNG\r\n\x1a\n"), "a PNG picture, not a checkpoint"},
        {BYTES("\xff\xd8\xff\xe0"), "a JPEG picture, not a checkpoint"},
        {BYTES("\x7f"
               "ELF\2"),
         "an ELF program or library, not a checkpoint"},
        {BYTES("\x1c\0\0\0TFL3"), "a TensorFlow Lite model, not a checkpoint"},
        {BYTES("\x1c\0\0\0ET12"), "a program of ExecuTorch (.pte), not a checkpoint"},
        {BYTES("%PDF-1.7"), "a PDF document, not a checkpoint"},
        {BYTES("SQLite format 3\0"), "an SQLite database, not a checkpoint"},
        {BYTES("PAR1"), "a Parquet table, not a checkpoint"},
        /* Nearly one. */
        {BYTES("\4\0\0\0\1\0\0"), NONE "04 00 00 00"},
        {BYTES("\x1c\0\0\0TFL"), NONE "1c 00 00 00"},
        {BYTES("TFL3"), NONE "54 46 4c 33"},
        {BYTES("\x1f\x8a\x08"), NONE "1f 8a 08"},
        {BYTES("\x1f"), NONE "1f"},
        {BYTES("\xfd"
               "7zXZ"),
         NONE "fd 37 7a 58"},
        {BYTES("P"), NONE "50"},
    };

    EXPECT_KINDS(cases);
}

Test(file_kind, no_safetensors_and_onnx)
{
#define ONNX "an ONNX model: a program; the checkpoint is what it was exported from"
    static const kind_case cases[] = {
        /* Safetensors: shorter than the head of one, no object behind the length, and too short. */
        {"\x02\0\0\0\0\0\0\0{", 8, NONE "02 00 00 00"},
        {BYTES("\x02\0\0\0\0\0\0\0[]"), NONE "02 00 00 00"},
        {BYTES("\x01\0\0\0\0\0\0\0{}"), NONE "01 00 00 00"},
        {BYTES("\x08\x08\x12\x07pytorch\x1a\x05"), ONNX},
        {BYTES("\x08\x1e\x12\x01x"), ONNX},
        /* Cut off; no version; another field; another first one. */
        {BYTES("\x08\x08\x12\x01"), NONE "08 08 12 01"},
        {BYTES("\x08\x00\x12\x01x\x1a"), NONE "08 00 12 01"},
        {BYTES("\x08\x1f\x12\x01x\x1a"), NONE "08 1f 12 01"},
        {BYTES("\x08\x08\x13\x01x\x1a"), NONE "08 08 13 01"},
        {BYTES("\x09\x08\x12\x01x\x1a"), NONE "09 08 12 01"},
    };

    EXPECT_KINDS(cases);
}

/* What was downloaded instead of a checkpoint. */
Test(file_kind, texts)
{
    static const kind_case cases[] = {
        {BYTES("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"),
         "a Git LFS pointer, not the file itself: `git lfs pull` fetches it"},
        {BYTES("version https://git"), "a text" SAYS "version https://git"},
        {BYTES("<!doctype html><title>Not Found</title>"), "a web page (HTML)" SAYS "Not Found"},
        {BYTES("\xef\xbb\xbf\r\n <HTML><head><TITLE lang=\"en\">\n404:\n  Not\33[2J\xff Found "),
         "a web page (HTML)" SAYS "404: Not\\x1b[2J\\xff Found"},
        {BYTES("<html><title>" HUNDRED "and more</title>"), "a web page (HTML)" SAYS HUNDRED},
        {BYTES("<html><title> </title>"), "a web page (HTML)" DOWNLOAD},
        {BYTES("<!-- a --> <b>"), "a text" DOWNLOAD},
        {BYTES("<html>"), "a web page (HTML)" DOWNLOAD},
        {"<html>", 4, NONE "3c 68 74 6d"}, /* the rest is behind the file */
        {BYTES("<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code><Message>Access "
               "Denied</Message></Error>"),
         "an XML text" SAYS "AccessDenied Access Denied"},
        {BYTES("<Error><Message>No such key</Message>"), "an XML text" SAYS "No such key"},
        {BYTES("{\"error\": \"Repository not found\"}"),
         "a JSON text" SAYS "{\"error\": \"Repository not found\"}"},
        {BYTES("{\n \"a\" :1 < 2 > 1"), "a JSON text" SAYS "{ \"a\" :1 < 2 > 1"},
        {BYTES("{\t\"a\" :1}"), "a JSON text" SAYS "{ \"a\" :1}"},
        {BYTES("{}"), "a JSON text" SAYS "{}"},
        {BYTES("{\"metadata\": {}, \"weight_map\": {\"a\": \"b\"}}"),
         "the index of a checkpoint in several files (JSON): open the files that its weight_map "
         "names"},
        {BYTES("{"), NONE "7b"},
        {BYTES("{a"), NONE "7b 61"},
        {BYTES(" \t"), NONE "20 09"},
    };

    EXPECT_KINDS(cases);
}

/* The file is not read beyond its end, whatever lies there. */
Test(file_kind, tar_files)
{
#define OLD_TAR                                                                                    \
    "memory: a tar file, as PyTorch wrote them before 2017: load it with PyTorch "                 \
    "(weights_only=False) and save it again"
    char bytes[262] = "sys_info";

    expect_failure_of(bytes, 262, "", BERTH_E_NOT_CHECKPOINT, "memory: " NONE "73 79 73 5f");
    memcpy(bytes + 257, "ustar", 5);
    expect_failure_of(bytes, 262, "", BERTH_E_NOT_CHECKPOINT, OLD_TAR);
    expect_failure_of(bytes, 261, "", BERTH_E_NOT_CHECKPOINT, "memory: " NONE "73 79 73 5f");
    bytes[8] = '2';
    expect_failure_of(bytes, 262, "", BERTH_E_NOT_CHECKPOINT,
                      "memory: a tar archive, not a PyTorch checkpoint: `tar -xf` unpacks it");
    read_file("old/tar-0.1.pth");
    expect_failure("", BERTH_E_NOT_CHECKPOINT, OLD_TAR);
}

/* What an open has read of the file does not change the answer: memory is seen whole, a file is
 * read in pieces. */
Test(file_kind, is_the_same_from_memory_and_by_reads)
{
    static const struct {
        const char *begin, *tells;
        size_t at; /* of what tells */
        bool is_seen;
    } cases[] = {
        {"\x80\x02", "torch.distributed.checkpoint.metadata", 3000, true},
        {"\x80\x02", "torch.distributed.checkpoint.metadata", 70000, false},
        {"{\"a\": 1", "\"weight_map\"", 65000, true},
        {"{\"a\": 1", "\"weight_map\"", 65530, false},
        {"PK\3\4" HEADER_1 HEADER_2 "\x58\2\0", ".safetensors", 30 + 600 - 12, false},
    };
    static const char *const says[] = {".metadata of", "weight_map", "safetensors"};
    uint8_t *bytes = malloc(80000);
    char *place = test_folder_new();

    cr_assert(bytes && chdir(place) == 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool is_seen = false;
        char first[sizeof error.message];
        memset(bytes, 'x', 80000);
        memcpy(bytes, cases[i].begin, i == 4 ? 30 : strlen(cases[i].begin));
        memcpy(bytes + cases[i].at, cases[i].tells, strlen(cases[i].tells));
        cr_expect_lt(open_bytes(bytes, 80000, ""), 0);
        (void)snprintf(first, sizeof first, "%s", strstr(error.message, ": "));
        for (size_t k = 0; k < sizeof says / sizeof *says; k++)
            is_seen |= strstr(first, says[k]) != NULL;
        cr_expect_eq(is_seen, cases[i].is_seen, "%s", first);
        char *step = strstr(first, "`berth convert` "); /* memory is in no folder */
        if (step)
            (void)snprintf(step, sizeof first - (size_t)(step - first), "%s",
                           "`berth convert . NEW.pt` makes a checkpoint of its directory");
        test_write_file("a", bytes, 80000);
        cr_expect_lt(berth_open("a", only("load.head_nbytes=1", NULL), &checkpoint, &error), 0);
        cr_expect_str_eq(strstr(error.message, ": "), first);
    }
    free(bytes);
    test_folder_remove(place);
}

/* What a server says without any form: a whole file of a few words. */
Test(file_kind, words_and_zeros)
{
    static const kind_case cases[] = {
        {BYTES("Entry not found"), "a text" SAYS "Entry not found"},
        {BYTES(" \n404:\tNot Found\r\n"), "a text" SAYS "404: Not Found"},
        /* One word; a control character; the last one of ASCII, and beyond. */
        {BYTES("Forbidden\n"), NONE "46 6f 72 62"},
        {BYTES("Not\1 Found"), NONE "4e 6f 74 01"},
        {BYTES("Not Found\x7f"), NONE "4e 6f 74 20"},
        {BYTES("Not Found\xc3\xbc"), NONE "4e 6f 74 20"},
    };
    static uint8_t bytes[70000];

    EXPECT_KINDS(cases);
    expect_failure_of(bytes, 0, "", BERTH_E_TRUNCATED,
                      "memory: the file is empty: a download or a save in place that did not end?");
    expect_failure_of(bytes, 512, "", BERTH_E_TRUNCATED,
                      "memory: it begins with zeros: a download or a copy that did not end?");
    expect_failure_of(bytes, 511, "", BERTH_E_NOT_CHECKPOINT, "memory: " NONE "00 00 00 00");
    memset(bytes, ' ', sizeof bytes);
    bytes[0] = 'a';
    expect_failure_of(bytes, 512, "", BERTH_E_NOT_CHECKPOINT, "memory: a text" SAYS "a");
    expect_failure_of(bytes, 513, "", BERTH_E_NOT_CHECKPOINT, "memory: " NONE "61 20 20 20");
    expect_failure_of(bytes, 70000, "", BERTH_E_NOT_CHECKPOINT, "memory: " NONE "61 20 20 20");
}

/* ---- the command ---- */

/* A command that is pasted names the file as a shell reads it, or not at all. */
Test(file_kind, files_in_commands)
{
    static const struct {
        const char *name, *word;
    } cases[] = {
        {"a-b_1.gz", "a-b_1.gz"},
        {"./-a.gz", "./-a.gz"},
        {"-a.gz", "./-a.gz"},
        {"a b.gz", "'a b.gz'"},
        {"$(a).gz", "'$(a).gz'"},
        {"it's.gz", "'it'\\''s.gz'"},
        {"a\nb.gz", ""},
        {"\xc3\xa4.gz", "'\xc3\xa4.gz'"},
        {"a\x7f.gz", ""},
        {"a\xc2\x9b.gz", ""},
        {"\xc3.gz", ""},
        {"''.gz", "''\\'''\\''.gz'"},
        {HUNDRED, HUNDRED},
        {HUNDRED "x", HUNDRED "x"},
        /* A word of 211 bytes, the longest one; and one of 212. */
        {HUNDRED FIVE(FIVE("'")) "123456789", "'" HUNDRED FIVE(FIVE("'\\''")) "123456789'"},
        {HUNDRED FIVE(FIVE("'")) "1234567890", ""},
    };
    char *place = test_folder_new(), says[300];

    cr_assert_eq(chdir(place), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_write_file(cases[i].name, "\x1f\x8b", 2);
        cr_expect_eq(berth_open(cases[i].name, NULL, &checkpoint, &error), BERTH_E_NOT_CHECKPOINT);
        bool is_word = *cases[i].word;
        (void)snprintf(says, sizeof says, ": compressed by gzip: `gzip -dc%s%s%s` unpacks it",
                       is_word ? " " : "", cases[i].word, is_word ? " >NEW.pt" : "");
        cr_expect_not_null(strstr(error.message, says), "%s", error.message);
    }
    test_folder_remove(place);
}

/* What has no path gets the path that the caller gives for it, in commands of ours alone. */
Test(file_kind, a_stand_in_for_the_path)
{
    static const uint8_t gzip[] = "\x1f\x8b";
    static const char metadata[] = "\x80\2ctorch.distributed.checkpoint.metadata\nMetadata\n.";
    berth_source source;
    berth_verdict verdict;

    read_file("old/unknown-1.13-zip.pth");
    source = berth_from_memory(file, file_nbytes);
    source.path = "https://host/a b.pt";
    FAILS_SAYING(berth_open_source(&source, NULL, &checkpoint, &error), BERTH_E_FORBIDDEN,
                 "memory: ");
    cr_expect_not_null(
        strstr(error.message,
               ": `berth ls --set load.unknown_globals=inert 'https://host/a b.pt'`"),
        "%s", error.message);
    source = berth_from_memory(gzip, sizeof gzip - 1);
    source.path = "https://host/a.gz";
    FAILS(berth_verify(&source, NULL, NULL, NULL, &verdict, &error), BERTH_E_NOT_CHECKPOINT,
          "memory: compressed by gzip: `gzip -dc` unpacks it");
    /* Of a folder, that of a file says nothing. */
    source = berth_from_memory(metadata, sizeof metadata - 1);
    source.path = "https://host/.metadata";
    FAILS_SAYING(berth_open_source(&source, NULL, &checkpoint, &error), BERTH_E_NOT_CHECKPOINT,
                 "`berth convert` makes a checkpoint of its directory");
}

/* ---- zip archives ---- */

/* By its last bytes. */
Test(file_kind, the_last_part_of_an_archive_in_several_files)
{
#define END(first, disk) first "PK\5\6" disk "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
#define LAST                                                                                       \
    "the last part of a zip archive in several files: `zip -s 0 NAME.zip --out NEW.zip` joins "    \
    "them"
    static const kind_case cases[] = {
        {BYTES(END("\1\2\3\4", "\1\0")), LAST},
        {BYTES(END("\1\2\3\4", "\0\1")), LAST},
        {BYTES(END("\1\2\3\4", "\0\0")), NONE "01 02 03 04"},
        {BYTES(END("\1\2\3\4", "\1\0") "\0"), NONE "01 02 03 04"},
        {BYTES("\1\2PK\5\6\1\0\0\0\0\0\0\0\0\0\0\0\0"), NONE "01 02 50 4b"},
    };

    expect_kinds(cases, sizeof cases / sizeof *cases);
}

/* Not all in one folder, and one of them could be opened: whatever its place. */
Test(file_kind, zip_archives_of_several_files)
{
#define NO_FOLDER                                                                                  \
    "memory: at byte 66: 'README.md' lies in no top folder; a checkpoint's records share one"
#define IT_HOLDS(suffix)                                                                           \
    NO_FOLDER " (it is a zip archive that holds a " suffix " file: `unzip` unpacks it)"
    static const char *const cases[][2] = {{"m.pt", IT_HOLDS(".pt")},
                                           {"mmm", NO_FOLDER},
                                           {"w.npy", NO_FOLDER},
                                           {"m/data.pkl", NO_FOLDER},
                                           {"data.pkm", NO_FOLDER},
                                           {"data.pkl", NO_FOLDER},
                                           {"a/m.safetensors", IT_HOLDS(".safetensors")},
                                           {"word/document.xml", NO_FOLDER}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const test_entry entries[] = {test_stored("README.md", "a", 1),
                                      test_stored(cases[i][0], "b", 1),
                                      test_stored(i == 0   ? "second.pt"
                                                  : i == 7 ? "a/b/data.pkl" /* no document, then */
                                                           : "more",
                                                  "c", 1)};
        test_zip zip = test_zip_new_foreign(entries, 3);
        char says[400];
        (void)snprintf(says, sizeof says, "memory: at byte %zu%s", zip.central_at[0],
                       strchr(cases[i][1] + strlen("memory: at byte "), ':'));
        expect_failure_of(zip.bytes, zip.nbytes, "", BERTH_E_ARCHIVE, says);
        zip.bytes[zip.central_at[1] + 28] ^= 0x80; /* a size beyond the directory */
        cr_expect_lt(open_bytes(zip.bytes, zip.nbytes, ""), 0);
        cr_expect_null(strstr(error.message, "unzip"));
        test_zip_free(&zip);
    }
}

/* Formats that are zips: by a name that each of them has, whatever else is in it. */
Test(file_kind, zip_archives_of_other_formats)
{
#define ARRAYS                                                                                     \
    "arrays of NumPy (.npz), not a PyTorch checkpoint: torch.from_numpy of each array that "       \
    "numpy.load gives is its tensor, if they are numbers in this machine's byte order"
    static const struct {
        const char *names[3], *says;
    } cases[] = {
        {{"[Content_Types].xml", "word/document.xml", "_rels/.rels"},
         "a Word document (.docx), not a checkpoint"},
        {{"_rels/.rels", "m.pt", "xl/workbook.xml"}, "an Excel workbook (.xlsx), not a checkpoint"},
        {{"_rels/.rels", "ppt/presentation.xml", "docProps/app.xml"},
         "a PowerPoint presentation (.pptx), not a checkpoint"},
        {{"mimetype", "content.xml", "META-INF/manifest.xml"},
         "an OpenDocument file (.odt, .ods, .odp), not a checkpoint"},
        {{"mimetype", "META-INF/container.xml", "a.opf"}, "a book (.epub), not a checkpoint"},
        {{"META-INF/", "META-INF/MANIFEST.MF", "A.class"},
         "a Java archive (.jar, .apk), not a checkpoint"},
        {{"classes.dex", "AndroidManifest.xml", "res/a"},
         "an Android app (.apk), not a checkpoint"},
        {{"m/m.pt", "m/w.npy", "m-1.0.dist-info/WHEEL"}, "a Python wheel (.whl), not a checkpoint"},
        {{"metadata.json", "config.json", "model.weights.h5"},
         "a Keras model (.keras), whose weights are an HDF5 file, not a checkpoint"},
        {{"a/w.npy", "b/w.npy", "b/v.npy"}, ARRAYS},
        {{"a/w.npy", "b/w.npy", "b/v.npz"}, NULL},
        {{"a/data.pkl", "b/data.pkl", "c/data.pkl"}, NULL},
        {{"any", "aword/document.xml", "dist-info/WHEEL"}, NULL},
        {{"any", "word/document.xml/", ".dist-info/WHEEL"}, NULL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const test_entry entries[] = {test_stored(cases[i].names[0], "", 0),
                                      test_stored(cases[i].names[1], "", 0),
                                      test_stored(cases[i].names[2], "", 0)};
        test_zip zip = test_zip_new_foreign(entries, 3);
        char says[400];
        (void)snprintf(says, sizeof says, "memory: %s", cases[i].says ? cases[i].says : "");
        if (cases[i].says)
            expect_failure_of(zip.bytes, zip.nbytes, "", BERTH_E_NOT_CHECKPOINT, says);
        else
            cr_expect_eq(open_bytes(zip.bytes, zip.nbytes, ""), BERTH_E_ARCHIVE);
        test_zip_free(&zip);
    }
}

/* By `zip -r ../x.pt .`; without data/ nothing helps. */
Test(file_kind, a_checkpoint_without_its_folder)
{
    static const char *const others[] = {"data/0", "data/", "date/0", "data"};

    for (size_t i = 0; i < 4; i++) {
        const test_entry entries[] = {test_stored("data.pkl", "a", 1),
                                      test_stored(others[i], "b", 1), test_stored("more", "c", 1)};
        test_zip zip = test_zip_new_foreign(entries, 3);
        char says[400];
        (void)snprintf(says, sizeof says,
                       "memory: at byte %zu: 'data.pkl' lies in no top folder; a checkpoint's "
                       "records share one%s",
                       zip.central_at[0], i < 2 ? " (put into one, it is read)" : "");
        expect_failure_of(zip.bytes, zip.nbytes, "", BERTH_E_ARCHIVE, says);
        test_zip_free(&zip);
    }
}

#define PROGRAM                                                                                    \
    "memory: a TorchScript archive (it has constants.pkl): a program, which is never run, "        \
    "without "                                                                                     \
    "values to read: `berth ls -r` lists its records"
#define UNZIP ": `unzip` unpacks it"
#define HOLDS(suffix) "memory: a zip archive that holds a " suffix " file" UNZIP
#define EXPORTED                                                                                   \
    "memory: a .pt2 program of torch.export, not a checkpoint: "                                   \
    "torch.export.load(f).state_dict is its weights, but runs what is in it: only if you trust "   \
    "the file"
#define COMPILED                                                                                   \
    "memory: a .pt2 archive without the programs and weights of torch.export (compiled by "        \
    "AOTInductor?), not a checkpoint: `berth ls -r` lists its records"
#define NO_PICKLE "memory: a zip archive without data.pkl: not a PyTorch checkpoint"

/* A checkpoint by its layout, with what makes TorchScript of it behind: PyTorch refuses it, too. */
Test(file_kind, constants_make_a_program_of_a_checkpoint)
{
    static const char *const options[] = {"", "load.check=directory", "load.check=headers",
                                          "load.calculate_storage_offsets=off"};

    add_text("code/a.py", "pass");
    build(NULL); /* code/ alone is no program */
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        expect_sample(options[i]);
    remove_record("code/a.py");
    add_text("constants.pkl", "N.");
    build(NULL);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        expect_failure(options[i], BERTH_E_NOT_CHECKPOINT, PROGRAM);
}

Test(file_kind, archives_that_hold_programs)
{
    static const struct {
        const char *name, *options;
        int code;
        const char *says;
    } cases[] = {
        {"old/torchscript-1.13.pt", "", BERTH_E_NOT_CHECKPOINT, PROGRAM},
        {"old/torchscript-1.13.pt", "load.check=none", BERTH_E_NOT_CHECKPOINT, PROGRAM},
        {"old/package-1.13.pt", "", BERTH_E_NOT_CHECKPOINT,
         "memory: a torch.package archive (.data/extern_modules, no data.pkl): a program, which is "
         "never run, without values to read: `berth ls -r` lists its records"},
        {"old/unknown-1.13-zip.pth", "", BERTH_E_FORBIDDEN,
         "memory: data.pkl at byte 242: global __main__ Unknown is not allowed in a checkpoint "
         "(load.unknown_globals=inert lists such files without running anything)"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        read_file(cases[i].name);
        expect_failure(cases[i].options, cases[i].code, cases[i].says);
    }
}

Test(file_kind, archives_without_data_pkl)
{
    static const struct {
        const char *record, *says;
    } cases[] = {
        {NULL, NO_PICKLE},
        {"any.txt", NO_PICKLE},
        {"model.pt", HOLDS(".pt")},
        {"a/model.pth", HOLDS(".pth")},
        {"last.ckpt", HOLDS(".ckpt")},
        {"pytorch_model.bin", HOLDS(".bin")},
        {"model.safetensors", HOLDS(".safetensors")},
        {"inner/data.pkl",
         "memory: a zip archive that holds a checkpoint's folder in another folder: unpacked, and "
         "packed again by `zip -0r` inside the other folder, it is one"},
        {"archive_format", COMPILED},
    };

    remove_record("data.pkl");
    add_text("first.pt", "any"); /* and others follow */
    add_text("notes", "any");
    build(NULL);
    expect_failure("", BERTH_E_NOT_CHECKPOINT, HOLDS(".pt"));
    remove_record("first.pt");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].record)
            add_text(cases[i].record, "any");
        build(NULL);
        expect_failure("", BERTH_E_NOT_CHECKPOINT, cases[i].says);
        if (cases[i].record)
            remove_record(cases[i].record);
    }
    add_text("archive_format", "pt2");
    add_text("models/model.json", "{}");
    add_text("models/other.json", "{}");
    build(NULL);
    expect_failure("", BERTH_E_NOT_CHECKPOINT, EXPORTED);
}

/* The first record lies in no folder; the bytes after its name do not count. */
Test(file_kind, archives_without_a_folder)
{
#define LOCAL(nbytes, name) BYTES("PK\3\4" HEADER_1 HEADER_2 nbytes "\0\0\0" name)
    static const struct {
        const char *bytes;
        size_t nbytes;
        const char *says;
    } cases[] = {
        {LOCAL("\x05", "w.npy"),
         "memory: arrays of NumPy (.npz), not a PyTorch checkpoint: torch.from_numpy of each array "
         "that numpy.load gives is its tensor, if they are numbers in this machine's byte order"},
        {LOCAL("\x04", "m.pt/"), HOLDS(".pt")},
        {LOCAL("\x20", "serialized_exported_program.json"), EXPORTED},
    };
    static const kind_case others[] = {
        {LOCAL("\x05", "m.pt/"), NULL}, {LOCAL("\x05", "m.pt"), NULL},
        {LOCAL("\x03", ".pt"), NULL},   {LOCAL("\x20", "serialized_exported_program.jsom"), NULL},
        {LOCAL("\x00", ""), NULL},      {"PK\3\4", 4, NULL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_failure_of(cases[i].bytes, cases[i].nbytes, "", BERTH_E_NOT_CHECKPOINT,
                          cases[i].says);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        expect_failure_of(others[i].bytes, others[i].nbytes, "", BERTH_E_ARCHIVE,
                          "memory: no end record: not a zip archive, or cut off: a download or a "
                          "save in place that did not end?");
}

/* ---- what surrounds an archive ---- */

/* Opens what is at `place`, which is removed, and compares the message after its name. */
static void expect_at(const char *place, const void *bytes, size_t nbytes, const char *says)
{
    test_write_file(place, bytes, nbytes);
    cr_expect_eq(berth_open(place, NULL, &checkpoint, &error), BERTH_E_ARCHIVE);
    const char *message = strstr(error.message, ": ");
    cr_expect_str_eq(message ? message + 2 : "", says, "%s", error.message);
    cr_expect_eq(unlink(place), 0);
}

Test(file_kind, archives_with_bytes_around_them)
{
    char *place = test_folder_new(), says[300];
    build(NULL);
    uint8_t *twice = malloc(2 * file_nbytes);

    cr_assert_not_null(twice);
    cr_assert_eq(chdir(place), 0);
    memcpy(twice, file, file_nbytes);
    memcpy(twice + file_nbytes, "hello", 5);
    (void)snprintf(says, sizeof says,
                   "at byte %zu: 5 bytes follow the archive, which ends here: `head -c %zu a.pt "
                   ">NEW.pt` leaves them out",
                   file_nbytes, file_nbytes);
    expect_at("a.pt", twice, file_nbytes + 5, says);
    memcpy(twice + file_nbytes, file, file_nbytes);
    (void)snprintf(says, sizeof says,
                   "at byte %zu: several archives in one file: the last one begins here: `tail -c "
                   "+%zu a.pt >NEW.pt` takes it out",
                   file_nbytes, file_nbytes + 1);
    expect_at("a.pt", twice, 2 * file_nbytes, says);
    expect_at("a.distcp", twice, 2 * file_nbytes,
              "a shard of torch.distributed.checkpoint, one archive for each tensor: `berth "
              "convert . NEW.pt` makes a checkpoint of its directory");
    (void)snprintf(says, sizeof says,
                   "at byte %zu: several archives in one file: the last one begins here: `tail -c "
                   "+%zu .distcp >NEW.pt` takes it out",
                   file_nbytes, file_nbytes + 1);
    expect_at(".distcp", twice, 2 * file_nbytes, says);
    (void)snprintf(says, sizeof says,
                   "at byte %zu: several archives in one file: the last one begins here: `tail -c "
                   "+%zu checkpoint.pt >NEW.pt` takes it out",
                   file_nbytes, file_nbytes + 1);
    expect_at("checkpoint.pt", twice, 2 * file_nbytes, says);
    twice[file_nbytes] = 'p'; /* no archive begins there */
    test_write_file("a.pt", twice, 2 * file_nbytes);
    cr_expect_eq(berth_open("a.pt", NULL, &checkpoint, &error), BERTH_E_ARCHIVE);
    cr_expect_null(strstr(error.message, "several"), "%s", error.message);
    free(twice);
    test_folder_remove(place);
}

/* A bad end of the only archive is not the end of a second one. */
Test(file_kind, an_archive_with_a_bad_end)
{
    enum { END_NBYTES = 22, DISK_AT = 4 };

    build(NULL);
    file[file_nbytes - END_NBYTES + DISK_AT] = 1;
    expect_failure("", BERTH_E_ARCHIVE,
                   "memory: at byte 2178: the end record names disks 1 and 0; only 0 can be read");
}
