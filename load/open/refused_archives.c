/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a zip archive is that is no checkpoint: by the name of its first record, by the names in its
 * directory, by what surrounds it.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "format/bytes.h"
#include "format/json/exported.h"
#include "format/layout.h"
#include "load/open/open_steps.h"

typedef unsigned long long ull;

#define LISTS_RECORDS BTH_STEP("berth ls -r ", "", "lists its records")
#define UNZIPS BTH_STEP("unzip ", "", "unpacks it")

/* ---- zip archives ---- */

/* What a record says of its archive. */
typedef enum meaning {
    MEANS_ARRAY,  /* it is NumPy's, if all others are arrays, too */
    MEANS_FOLDER, /* a folder too many */
    MEANS_FILE,   /* it holds a file that can be opened by itself */
    MEANS_FORMAT  /* it is of another format, whatever else is in it */
} meaning;

#define HOLDS(suffix)                                                                              \
    {                                                                                              \
        suffix, {"a zip archive that holds a " suffix " file", UNZIPS}, MEANS_FILE                 \
    }
#define FORMAT(name, text)                                                                         \
    {                                                                                              \
        name, {.what = text ", not a checkpoint"}, MEANS_FORMAT                                    \
    }

/* By a record's whole name; by its end, if the text begins with a dot or a slash. */
static const struct suffix {
    const char *text;
    bth_file_kind kind;
    meaning meaning;
} suffixes[] = {
    {".npy",
     {"arrays of NumPy (.npz), not a PyTorch checkpoint",
      {BTH_RESAVES("{k: torch.from_numpy(v) for k, v in numpy.load(sys.argv[1]).items()}"), "",
       "makes one of them " BTH_IF_NUMBERS,
       "torch.from_numpy of each array that numpy.load gives is its tensor, " BTH_IF_NUMBERS,
       false}},
     MEANS_ARRAY},
    {"/data.pkl",
     {"a zip archive that holds a checkpoint's folder in another folder",
      {"unzip -d NEW ", " && (cd NEW/* && zip -0r ../../NEW.pt *)", "leaves the other folder out",
       "unpacked, and packed again by `zip -0r` inside the other folder, it is one", false}},
     MEANS_FOLDER},
    HOLDS(".pt"),
    HOLDS(".pth"),
    HOLDS(".ckpt"),
    HOLDS(".bin"),
    HOLDS(".safetensors"),
    FORMAT("word/document.xml", "a Word document (.docx)"),
    FORMAT("xl/workbook.xml", "an Excel workbook (.xlsx)"),
    FORMAT("ppt/presentation.xml", "a PowerPoint presentation (.pptx)"),
    FORMAT("META-INF/manifest.xml", "an OpenDocument file (.odt, .ods, .odp)"),
    FORMAT("META-INF/container.xml", "a book (.epub)"),
    FORMAT("META-INF/MANIFEST.MF", "a Java archive (.jar, .apk)"),
    FORMAT("AndroidManifest.xml", "an Android app (.apk)"),
    FORMAT(".dist-info/WHEEL", "a Python wheel (.whl)"),
    FORMAT("model.weights.h5", "a Keras model (.keras), whose weights are an HDF5 file"),
};

static const bth_file_kind exported_program = {
    "a .pt2 program of torch.export, not a checkpoint",
    {"python3 -c \"import sys, torch; torch.save(torch.export.load(sys.argv[1]).state_dict, "
     "'NEW.pt')\" ",
     "", "saves its weights as one, but runs what is in it: only if you trust the file",
     "torch.export.load(f).state_dict is its weights, but runs what is in it: only if you trust "
     "the file",
     false}};

/* By AOTInductor: there are weights, if any, in its machine code. */
static const bth_file_kind compiled_program = {
    "a .pt2 archive without the programs and weights of torch.export (compiled by AOTInductor?), "
    "not a checkpoint",
    LISTS_RECORDS};

/* NULL: no row has the name's end. */
static const struct suffix *name_find_suffix(const char *name, size_t nbytes)
{
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        const char *text = suffixes[i].text;
        size_t n = strlen(text);
        bool is_end = *text == '.' || *text == '/';
        if ((is_end ? nbytes > n : nbytes == n) && memcmp(name + nbytes - n, text, n) == 0)
            return &suffixes[i];
    }
    return NULL;
}

/* PyTorch, too, refuses an archive whose first record lies in no folder. */
int bth_archive_check_first_name(const bth_head_cache *cache, berth_error *error)
{
    static const char program[] = "serialized_exported_program.json"; /* before PyTorch 2.8 */
    const char *name = (const char *)cache->head + BTH_ZIP_LOCAL_NBYTES;
    size_t n = cache->head_nbytes > BTH_ZIP_LOCAL_NBYTES
                   ? (size_t)cache->head[26] | (size_t)cache->head[27] << 8
                   : 0;

    if (n == 0 || n > BTH_HEAD_MIN_NBYTES - BTH_ZIP_LOCAL_NBYTES ||
        n > cache->head_nbytes - BTH_ZIP_LOCAL_NBYTES || memchr(name, '/', n))
        return 0;
    if (n == sizeof program - 1 && memcmp(name, program, n) == 0)
        return bth_file_kind_refuse(&exported_program, cache->reader, error);
    const struct suffix *suffix = name_find_suffix(name, n);
    return suffix ? bth_file_kind_refuse(&suffix->kind, cache->reader, error) : 0;
}

int bth_archive_explain_directory(const uint8_t *directory, size_t nbytes, const bth_reader *reader,
                                  berth_error *error)
{
    enum { SIZES_AT = 28 }; /* in an entry: of its name, extra fields and comment */
    bth_cursor cursor = bth_cursor_make(directory, nbytes);
    const struct suffix *first[MEANS_FORMAT + 1] = {0}; /* of each meaning */
    size_t n_names = 0, n_arrays = 0;
    bool has_data_pkl = false, has_data = false; /* in no folder */
    static const bth_step unzips = BTH_STEP("unzip ", "", "unpacks it)");
    static const bth_step packs_again = {
        "7z x -oNEW ", " && (cd NEW && zip -0r ../NEW.pt *)", "makes a checkpoint of it",
        "unpacked by `7z x`, and packed again by `zip -0r`, it is a checkpoint", false};
    static const bth_step puts_together = {"unzip -d NEW ", " && zip -0r NEW.pt NEW",
                                           "puts them into one)", "put into one, it is read)",
                                           false};

    /* What other tools unpack; they ask for the password. */
    if (error->code == BERTH_E_UNSUPPORTED &&
        (strstr(error->message, ": " BTH_ZIP_REFUSED_ENCRYPTION) ||
         strstr(error->message, ": " BTH_ZIP_REFUSED_METHOD)))
        return bth_error_append_step(error, ": ", &packs_again, reader);
    while (error->code == BERTH_E_ARCHIVE && bth_cursor_left(&cursor) > 0) {
        (void)bth_cursor_bytes(&cursor, SIZES_AT);
        size_t n = bth_cursor_u16(&cursor), n_others = bth_cursor_u16(&cursor);
        n_others += bth_cursor_u16(&cursor);
        (void)bth_cursor_bytes(&cursor, BTH_ZIP_CENTRAL_NBYTES - SIZES_AT - 6);
        const char *name = (const char *)bth_cursor_bytes(&cursor, n);
        (void)bth_cursor_bytes(&cursor, n_others);
        if (!cursor.good)
            break;
        const struct suffix *found = name_find_suffix(name, n);
        n_names++;
        n_arrays += found && found->meaning == MEANS_ARRAY;
        if (found && !first[found->meaning])
            first[found->meaning] = found;
        has_data_pkl = has_data_pkl || (n == 8 && memcmp(name, "data.pkl", 8) == 0);
        has_data = has_data || (n >= 5 && memcmp(name, "data/", 5) == 0);
    }
    const struct suffix *format = first[MEANS_FORMAT], *file = first[MEANS_FILE];
    if (!format && n_arrays == n_names) /* their names have slashes */
        format = first[MEANS_ARRAY];
    if (format && !first[MEANS_FOLDER]) {
        bth_error_clear(error);
        return bth_file_kind_refuse(&format->kind, reader, error);
    }
    if (file) {
        (void)bth_error_append(error, " (it is %s", file->kind.what);
        return bth_error_append_step(error, ": ", &unzips, reader);
    }
    if (has_data_pkl && has_data)
        return bth_error_append_step(error, " (", &puts_together, reader);
    return error->code;
}

/* PyTorch takes an archive with constants.pkl for TorchScript, even if data.pkl is in it. */
int bth_archive_check_is_checkpoint(const bth_container *container, const bth_reader *reader,
                                    berth_error *error)
{
    static const bth_file_kind script = {
        "a TorchScript archive (it has constants.pkl): a program, which is "
        "never run, without values to read",
        LISTS_RECORDS};
    static const bth_file_kind package = {
        "a torch.package archive (.data/extern_modules, no data.pkl): a "
        "program, which is never run, without values to read",
        LISTS_RECORDS};
    static const bth_file_kind any = {
        .what = "a zip archive without data.pkl: not a PyTorch checkpoint"};
    static const char models[] = "models/";
    const struct suffix *suffix = NULL; /* of any record whose name's end tells */
    bool has_models = false;

    if (bth_container_find(container, "constants.pkl"))
        return bth_file_kind_refuse(&script, reader, error);
    if (bth_container_find(container, "data.pkl") || bth_archive_is_exported_program(container))
        return 0;
    if (bth_container_find(container, ".data/extern_modules"))
        return bth_file_kind_refuse(&package, reader, error);
    for (size_t i = 0; i < container->directory.n_entries; i++) {
        const char *record = container->directory.entries[i].record;
        has_models = has_models || strncmp(record, models, sizeof models - 1) == 0;
        if (!suffix)
            suffix = name_find_suffix(record, strlen(record));
    }
    if (bth_container_find(container, BTH_EXPORTED_FORMAT_RECORD))
        return bth_file_kind_refuse(has_models ? &exported_program : &compiled_program, reader,
                                    error);
    return bth_file_kind_refuse(suffix ? &suffix->kind : &any, reader, error);
}

/* ---- what surrounds an archive ---- */

int bth_archive_refuse_end(bth_head_cache *cache, const uint8_t *tail, size_t nbytes,
                           berth_error *error)
{
    static const char suffix[] = ".distcp";
    const bth_reader *reader = cache->reader;
    char before[40];
    const bth_step takes_out = BTH_STEP(before, " >NEW.pt", "takes it out");
    const size_t locator_nbytes = BTH_ZIP_LOCATOR_NBYTES;
    const size_t end64_nbytes = BTH_ZIP_END64_RECORD_NBYTES + locator_nbytes;
    uint64_t tail_at = reader->nbytes - nbytes, end;
    size_t at; /* of the last end record in the tail */
    const uint8_t *bytes;
    berth_error ignored;

    bth_error_clear(&ignored);
    if (nbytes < BTH_ZIP_END_RECORD_NBYTES)
        return error->code;
    at = nbytes - BTH_ZIP_END_RECORD_NBYTES;
    while (at > 0 && memcmp(tail + at, "PK\5\6", 4) != 0)
        at--;
    if (memcmp(tail + at, "PK\5\6", 4) != 0)
        return error->code;
    end = tail_at + at + BTH_ZIP_END_RECORD_NBYTES + tail[at + 20] + ((uint64_t)tail[at + 21] << 8);
    /* Where the last archive says that it begins; 0: where it does. */
    uint64_t expected, found = tail_at + at;
    bth_cursor cursor = bth_cursor_make(tail + at + 12, 8);
    expected = bth_cursor_u32(&cursor);  /* the directory's bytes */
    expected += bth_cursor_u32(&cursor); /* its offset */
    if (at >= end64_nbytes && memcmp(tail + at - locator_nbytes, "PK\6\7", 4) == 0) {
        cursor = bth_cursor_make(tail + at - locator_nbytes + 8, 8);
        expected = bth_cursor_u64(&cursor);
        found -= end64_nbytes;
    }
    uint64_t begin = expected < found ? found - expected : 0;
    if (end < reader->nbytes) {
        bth_error_clear(error);
        (void)bth_fail(error, BERTH_E_ARCHIVE, NULL, end,
                       "%llu bytes follow the archive, which ends here",
                       (ull)(reader->nbytes - end));
        return bth_error_append_leaves_out(error, end, " >NEW.pt", reader);
    }
    if (begin == 0 || bth_head_cache_get_or_read(cache, begin, 4, 0, &bytes, &ignored) < 0 ||
        memcmp(bytes, "PK\3\4", 4) != 0)
        return error->code;
    /* Several archives. */
    size_t n_name = strlen(reader->name), n_suffix = sizeof suffix - 1;
    bth_error_clear(error);
    if (n_name > n_suffix && strcmp(reader->name + n_name - n_suffix, suffix) == 0) {
        (void)bth_fail_status(
            error, BERTH_E_ARCHIVE,
            "a shard of torch.distributed.checkpoint, one archive for each tensor");
        return bth_error_append_step(error, ": ", &bth_dcp_to_torch, reader);
    }
    (void)snprintf(before, sizeof before, "tail -c +%llu ", (ull)begin + 1);
    (void)bth_fail(error, BERTH_E_ARCHIVE, NULL, begin,
                   "several archives in one file: the last one begins here");
    return bth_error_append_step(error, ": ", &takes_out, reader);
}
