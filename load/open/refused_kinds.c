/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a file is that is no checkpoint and no zip archive: by its first bytes. What a refused
 * pickle names: a file that names a function gets no command that would run it.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/pickle/pickle.h"
#include "load/open/open_steps.h"

/* The kind is in these first bytes of the file, however many an open has read. */
#define KIND_NBYTES (64 << 10)
/* A file of words is no longer. */
#define WORDS_MAX_NBYTES 512
/* More of a text is not shown. */
#define SHOWN_NBYTES 100
/* Behind the byte at which a file in the legacy format is refused, its pickles are looked at so
 * far, however many bytes an open has read. */
#define LEGACY_NBYTES (64 << 10)
/* So much of the .metadata in a folder is looked at. */
#define METADATA_NBYTES (64 << 10)

#define NAMES "; it names %s, which Berth never calls"

/* ---- sentences, and next steps ---- */

/* A file or a folder as a word of a command line; "": it cannot be one. */
typedef struct file_word {
    char text[BTH_WORD_NBYTES + 12];
} file_word;

/* Only names that are shown as they are. In single quotes if a shell needs them; a quote in the
 * name stands outside of them: '\''. */
static file_word word_make(const char *name, size_t nbytes)
{
    file_word word = {""};
    bool quoted = false;
    size_t n = 0;

    if (nbytes > BTH_WORD_NBYTES ||
        berth_show_text(name, nbytes, BERTH_TEXT_PLAIN, NULL, 0) != nbytes)
        return word;
    for (size_t i = 0; i < nbytes; i++)
        quoted = quoted || (uint8_t)name[i] <= ' ' || (uint8_t)name[i] >= 0x7f ||
                 strchr("'\"`\\$&|;<>()*?[]{}#!~", name[i]);
    if (nbytes > 0) /* "./": no option */
        n = (size_t)snprintf(word.text, sizeof word.text, "%s%s", quoted ? "'" : "",
                             *name == '-' ? "./" : "");
    for (size_t i = 0; i < nbytes; i++) {
        const char *piece = name[i] == '\'' ? "'\\''" : (const char[2]){name[i], '\0'};
        if (n + strlen(piece) + 2 > sizeof word.text)
            return (file_word){""};
        n += (size_t)snprintf(word.text + n, sizeof word.text - n, "%s", piece);
    }
    if (quoted)
        (void)snprintf(word.text + n, sizeof word.text - n, "'");
    return word;
}

int bth_error_append_step(berth_error *error, const char *lead, const bth_step *step,
                          const bth_reader *reader)
{
    static const char ours[] = "berth ";
    const char *name = reader->has_path ? reader->name : "";
    size_t name_nbytes, n = strlen(step->before);

    if (!reader->has_path && reader->stand_in && !step->of_folder &&
        strncmp(step->before, ours, sizeof ours - 1) == 0)
        name = reader->stand_in;
    name_nbytes = strlen(name);
    if (reader->has_path && step->of_folder) {
        const char *slash = strrchr(name, '/');
        name_nbytes = slash && slash > name ? (size_t)(slash - name) : 1;
        name = slash ? name : ".";
    }
    file_word word = word_make(name, name_nbytes);
    if (*word.text)
        return bth_error_append(error, "%s`%s%s%s`%s%s", lead, step->before, word.text, step->after,
                                *step->does ? " " : "", step->does);
    if (step->without)
        return *step->without ? bth_error_append(error, "%s%s", lead, step->without) : error->code;
    while (n > 0 && step->before[n - 1] == ' ')
        n--;
    return bth_error_append(error, "%s`%.*s` %s", lead, (int)n, step->before, step->does);
}

const bth_step bth_dcp_to_torch = {"berth convert ", " NEW.pt",
                                   "makes a checkpoint of its directory", NULL, true};

int bth_error_append_leaves_out(berth_error *error, uint64_t nbytes, const char *after,
                                const bth_reader *reader)
{
    char before[40];
    const bth_step step = BTH_STEP(before, after, "leaves them out");

    (void)snprintf(before, sizeof before, "head -c %llu ", (unsigned long long)nbytes);
    return bth_error_append_step(error, ": ", &step, reader);
}

/* The codes of the reader of pickles; none has failed of a file or of memory. */
static bool error_is_refusal(const berth_error *error)
{
    return error->code == BERTH_E_FORBIDDEN || error->code == BERTH_E_PICKLE ||
           error->code == BERTH_E_UNSUPPORTED || error->code == BERTH_E_TENSOR ||
           error->code == BERTH_E_TRUNCATED;
}

int bth_later_object_explain(const bth_reader *file, uint64_t offset, berth_error *error)
{
    bool is_whole = error->code == BERTH_E_FORBIDDEN || error->code == BERTH_E_UNSUPPORTED;
    char before[40];
    const bth_step step =
        BTH_STEP(before, " >NEW.pt",
                 is_whole ? "makes a file of it" : "keeps what is in front of it, which is whole");

    if (error->offset != BERTH_NO_OFFSET)
        error->offset += offset;
    if (!error_is_refusal(error) && error->code != BERTH_E_ARCHIVE)
        return error->code; /* says nothing about the file */
    if (error->code == BERTH_E_ARCHIVE && strstr(error->message, BTH_FOLLOW_LAST)) {
        uint64_t end = error->offset;
        bth_error_clear(error);
        (void)bth_fail(error, BERTH_E_ARCHIVE, NULL, end,
                       "%llu bytes" BTH_FOLLOW_LAST "storage of the last object",
                       (unsigned long long)(file->nbytes - end));
        (void)bth_error_append_leaves_out(error, end, " >NEW.pt", file);
        return bth_error_prefix(error, file->name);
    }
    (void)(is_whole
               ? snprintf(before, sizeof before, "tail -c +%llu ", (unsigned long long)offset + 1)
               : snprintf(before, sizeof before, "head -c %llu ", (unsigned long long)offset));
    return bth_error_append_step(error, ": ", &step, file);
}

int bth_file_kind_refuse(const bth_file_kind *kind, const bth_reader *reader, berth_error *error)
{
    (void)bth_fail_status(error, BERTH_E_NOT_CHECKPOINT, "%s", kind->what);
    return kind->step.before ? bth_error_append_step(error, ": ", &kind->step, reader)
                             : error->code;
}

/* ---- the first bytes: signatures ---- */

#define OF_SEVERAL_FILES                                                                           \
    " of a zip archive in several files: `zip -s 0 NAME.zip --out NEW.zip` joins them"
#define NO_CHECKPOINT ", not a checkpoint"
#define GGML(name) "a ggml file (" name "), the format of llama.cpp before GGUF" NO_CHECKPOINT
#define TORCH7                                                                                     \
    "a file of Torch7 (Lua), not a checkpoint of PyTorch, which read such files before 1.0"
#define UNPACKS(command) BTH_STEP(command " -dc ", " >NEW.pt", "unpacks it")
/* A row; the last argument is the step. */
#define SIGNATURE(at, bytes, what, ...)                                                            \
    {                                                                                              \
        at, bytes, sizeof(bytes) - 1,                                                              \
        {                                                                                          \
            what, __VA_ARGS__                                                                      \
        }                                                                                          \
    }

static const struct signature {
    size_t at; /* in the file */
    const char *bytes;
    size_t nbytes;
    bth_file_kind kind;
} signatures[] = {
    SIGNATURE(0, "PK\5\6", "a zip archive without any record", BTH_NO_STEP),
    SIGNATURE(0, "\x1f\x8b", "compressed by gzip", UNPACKS("gzip")),
    SIGNATURE(0, "\xfd\x37zXZ\0", "compressed by xz", UNPACKS("xz")),
    SIGNATURE(0, "\x28\xb5\x2f\xfd", "compressed by zstd", UNPACKS("zstd")),
    SIGNATURE(0, "\x04\x22\x4d\x18", "compressed by lz4", UNPACKS("lz4")),
    SIGNATURE(0, "BZh", "compressed by bzip2", UNPACKS("bzip2")),
    SIGNATURE(0, "\x1f\x9d", "compressed by compress", UNPACKS("gzip")),
    SIGNATURE(0, "\x5d\0\0", "compressed by lzma", UNPACKS("xz")),
    SIGNATURE(0, "UEsD", "a zip archive in base64",
              BTH_STEP("base64 -d ", " >NEW.pt", "decodes it")),
    SIGNATURE(0, "Salted__", "encrypted by openssl: `openssl enc -d` decrypts it", BTH_NO_STEP),
    SIGNATURE(0, "PK\7\10", "a part" OF_SEVERAL_FILES, BTH_NO_STEP),
    SIGNATURE(0, "HTTP/",
              "a download with the server's header in front of it: `curl` without `-i` leaves that "
              "out",
              BTH_NO_STEP),
    SIGNATURE(0, "7z\xbc\xaf\x27\x1c", "a 7z archive", BTH_STEP("7z x ", "", "unpacks it")),
    SIGNATURE(0, "Rar!\x1a\x07", "a rar archive", BTH_STEP("unrar x ", "", "unpacks it")),
    SIGNATURE(0, "GGUF", "a GGUF file, the format of llama.cpp, not of PyTorch",
              BTH_STEP("gguf-dump ", "", "(of Python's package gguf) lists it")),
    SIGNATURE(0, "\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras and h5py write them, not PyTorch",
              BTH_STEP("h5ls -r ", "", "lists it")),
    SIGNATURE(0, "\x93NUMPY", "an array of NumPy (.npy), not a PyTorch checkpoint",
              {BTH_RESAVES("torch.from_numpy(numpy.load(sys.argv[1]))"), "",
               "makes one of it if it holds numbers in this machine's byte order",
               "torch.from_numpy(numpy.load(f)) is its tensor if it holds numbers in this "
               "machine's byte order",
               false}),
    SIGNATURE(0, "lmgg", GGML("ggml"), BTH_NO_STEP),
    SIGNATURE(0, "fmgg", GGML("ggmf"), BTH_NO_STEP),
    SIGNATURE(0, "tjgg", GGML("ggjt"), BTH_NO_STEP),
    SIGNATURE(0, "\4\0\0\0\1\0\0\0", TORCH7, BTH_NO_STEP), /* an object of it */
    SIGNATURE(0, "\3\0\0\0\1\0\0\0", TORCH7, BTH_NO_STEP), /* a table */
    SIGNATURE(0, "version https://git-lfs.github.com/",
              "a Git LFS pointer, not the file itself: `git lfs pull` fetches it", BTH_NO_STEP),
    SIGNATURE(0, "\x89PNG\r\n\x1a\n", "a PNG picture" NO_CHECKPOINT, BTH_NO_STEP),
    SIGNATURE(0, "\xff\xd8\xff", "a JPEG picture" NO_CHECKPOINT, BTH_NO_STEP),
    SIGNATURE(0, "\177ELF", "an ELF program or library" NO_CHECKPOINT, BTH_NO_STEP),
    SIGNATURE(0, "%PDF-", "a PDF document" NO_CHECKPOINT, BTH_NO_STEP),
    SIGNATURE(0, "SQLite format 3\0", "an SQLite database" NO_CHECKPOINT, BTH_NO_STEP),
    SIGNATURE(0, "PAR1", "a Parquet table" NO_CHECKPOINT, BTH_NO_STEP),
    /* FlatBuffers have the name of their format at byte 4. */
    SIGNATURE(4, "TFL3", "a TensorFlow Lite model" NO_CHECKPOINT, BTH_NO_STEP),
    SIGNATURE(4, "ET12", "a program of ExecuTorch (.pte)" NO_CHECKPOINT, BTH_NO_STEP),
};

static bool head_has_at(const bth_head_cache *cache, size_t at, const char *bytes, size_t nbytes)
{
    return cache->head_nbytes >= at + nbytes && memcmp(cache->head + at, bytes, nbytes) == 0;
}

/* ---- the first bytes: texts, and ONNX, which has no signature ---- */

static bool char_is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* "what, not a checkpoint", and what the text says outside of tags, if anything: the first
 * SHOWN_NBYTES, in one line. */
static void text_refuse(const char *what, const char *text, size_t nbytes, berth_error *error)
{
    char shown[SHOWN_NBYTES + 1];
    bool is_tag = false, is_tagged = nbytes > 0 && *text == '<';
    size_t n = 0;

    for (size_t i = 0; i < nbytes && n < SHOWN_NBYTES; i++) {
        is_tag = is_tagged && (is_tag || text[i] == '<');
        if (!is_tag && !char_is_space(text[i]))
            shown[n++] = text[i];
        else if (n > 0 && shown[n - 1] != ' ')
            shown[n++] = ' ';
        is_tag = is_tag && text[i] != '>';
    }
    shown[n > 0 && shown[n - 1] == ' ' ? n - 1 : n] = '\0';
    (void)bth_fail_status(error, BERTH_E_NOT_CHECKPOINT,
                          "%s, not a checkpoint: a download that failed?%s%s", what,
                          n > 0 ? " It says: " : "", shown);
}

/* Web pages, XML, JSON; ONNX: a protobuf message, the version of its format, then a text. */
static void head_refuse_text(const bth_head_cache *cache, berth_error *error)
{
    static const struct {
        const char *begin, *what;
    } forms[] = {{"<!doctype html", "a web page (HTML)"},
                 {"<html", "a web page (HTML)"},
                 {"<?xml", "an XML text"},
                 {"<error>", "an XML text"},
                 {"{\"", "a JSON text"},
                 {"{ ", "a JSON text"},
                 {"{\t", "a JSON text"},
                 {"{\n", "a JSON text"},
                 {"{\r", "a JSON text"},
                 {"{}", "a JSON text"}};
    const char *text = (const char *)cache->head;
    size_t nbytes = (size_t)cache->head_nbytes;

    if (nbytes > 4 && text[0] == 8 && text[1] > 0 && text[1] <= 30 && text[2] == 0x12) {
        (void)bth_fail_status(error, BERTH_E_NOT_CHECKPOINT,
                              "an ONNX model: a program; the checkpoint is what it was exported "
                              "from");
        return;
    }
    if (head_has_at(cache, 0, "\xef\xbb\xbf", 3)) /* a byte order mark */
        text += 3, nbytes -= 3;
    for (; nbytes > 0 && char_is_space(*text); nbytes--)
        text++;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        size_t n = strlen(forms[i].begin);
        if (nbytes < n || strncasecmp(text, forms[i].begin, n) != 0)
            continue;
        if (*text == '{' && memmem(text, nbytes, "\"weight_map\"", 12))
            (void)bth_fail_status(error, BERTH_E_NOT_CHECKPOINT,
                                  "the index of a checkpoint in several files (JSON): open the "
                                  "files that its weight_map names");
        else
            text_refuse(forms[i].what, text, nbytes, error);
        return;
    }
}

/* A server's answer without any form ("Entry not found"): the whole file is a few words. */
static void head_refuse_words(const bth_head_cache *cache, berth_error *error)
{
    const char *text = (const char *)cache->head;
    bool has_space = false;

    if (cache->reader->nbytes > cache->head_nbytes || cache->head_nbytes > WORDS_MAX_NBYTES)
        return;
    for (size_t i = 0; i < cache->head_nbytes; i++) {
        if ((uint8_t)text[i] >= 0x7f || (text[i] < ' ' && !char_is_space(text[i])))
            return;
        has_space = has_space || (text[i] == ' ' && i > 0);
    }
    if (has_space)
        text_refuse("a text", text, (size_t)cache->head_nbytes, error);
}

/* Refuses the kind, or what it is without its command, and the global that was found. */
static void kind_refuse(const bth_file_kind *kind, const bth_head_cache *cache,
                        const bth_found_global *found, berth_error *error)
{
    const bth_file_kind what = {.what = kind->what};

    (void)bth_file_kind_refuse(*found->words ? &what : kind, cache->reader, error);
    if (*found->words)
        (void)bth_error_append(error, NAMES, found->words);
}

/* ---- tar archives ---- */

/* A tar archive, among them the checkpoints of before 2017. */
static void head_refuse_tar(const bth_head_cache *cache, berth_error *error)
{
    static const char *const members[] = {"sys_info", "pickle", "tensors", "storages"};
    static const bth_file_kind other = {"a tar archive, not a PyTorch checkpoint",
                                        BTH_STEP("tar -xf ", "", "unpacks it")};
    enum { BLOCK_NBYTES = 512, SIZE_AT = 124, SIZE_END = 136 };
    const char *first = (const char *)cache->head;
    bth_found_global found = {0};

    if (!head_has_at(cache, 257, "ustar", 5))
        return;
    /* A global in the members that begin in the head. */
    for (uint64_t at = 0; cache->head_nbytes - at > BLOCK_NBYTES && !*found.words;) {
        uint64_t left = cache->head_nbytes - at - BLOCK_NBYTES, member = 0;
        /* Octal digits. A number that is cut short is too small, which does no harm. */
        for (const char *digit = first + at + SIZE_AT; digit < first + at + SIZE_END; digit++)
            if (*digit >= '0' && *digit <= '7')
                member = member << 3 | (uint64_t)(*digit - '0');
        at += BLOCK_NBYTES;
        bth_pickle_find_global(cache->head + at, (size_t)bth_min(member, left), false, &found);
        if (member > left - left % BLOCK_NBYTES)
            break;
        at += (member + BLOCK_NBYTES - 1) / BLOCK_NBYTES * BLOCK_NBYTES;
    }
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        if (strncmp(first, members[i], 100) != 0)
            continue;
        (void)bth_fail_status(error, BERTH_E_NOT_CHECKPOINT,
                              "a tar file, as PyTorch wrote them before 2017");
        if (*found.words)
            (void)bth_error_append(error, NAMES, found.words);
        else
            (void)bth_error_append(error,
                                   ": load it with PyTorch (weights_only=False) and save it again");
        return;
    }
    (void)bth_file_kind_refuse(&other, cache->reader, error);
}

/* ---- the legacy format, bare pickles ---- */

static const bth_step resave_by_pytorch = {BTH_RESAVE_BY_PYTORCH, "", BTH_RESAVE_DOES,
                                           "PyTorch (weights_only=False) " BTH_RESAVE_DOES, false};

/* The legacy format in another protocol than 2 and 3: its first pickle is the magic number. */
static void head_refuse_legacy_protocol(const bth_head_cache *cache, berth_error *error)
{
    static const char line[] = "L119547037146038801333356L\n."; /* protocols 0 and 1 */
    static const char number[] = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    enum { PROTO_AND_FRAME_NBYTES = 11 };
    const char *protocol;
    char what[160];
    const bth_file_kind kind = {what, resave_by_pytorch};
    bth_found_global found;

    if (head_has_at(cache, 0, line, sizeof line - 1))
        protocol = "0 (whose tensors nobody can read) or 1";
    else if (head_has_at(cache, 0, "\x80\4", 2))
        protocol = "4";
    else if (head_has_at(cache, 0, "\x80\5", 2))
        protocol = "5";
    else
        return;
    if (cache->head[0] == 0x80 &&
        !head_has_at(cache, PROTO_AND_FRAME_NBYTES, number, sizeof number - 1))
        return;
    (void)snprintf(what, sizeof what,
                   "in the legacy format, saved with pickle_protocol=%s" BTH_REFUSED_FOR_PROTOCOL,
                   protocol);
    bth_pickle_find_global(cache->head, (size_t)cache->head_nbytes, false, &found);
    kind_refuse(&kind, cache, &found, error);
}

/* Any other pickle: by torch.distributed.checkpoint, or bare. */
static void head_refuse_pickle(const bth_head_cache *cache, berth_error *error)
{
    static const char module[] = "torch.distributed.checkpoint.metadata";
    static const bth_file_kind bare = {.what = "a bare pickle, not a PyTorch checkpoint"};
    const bth_file_kind metadata = {"the .metadata of a checkpoint of torch.distributed.checkpoint",
                                    bth_dcp_to_torch};
    bool has_protocol = cache->head_nbytes >= 2 && cache->head[0] == 0x80;
    bool is_distributed = has_protocol && memmem(cache->head, (size_t)cache->head_nbytes, module,
                                                 sizeof module - 1) != NULL;
    bth_found_global found;

    if (has_protocol && cache->head[1] > 5)
        return;
    bth_pickle_find_global(cache->head, (size_t)cache->head_nbytes, is_distributed, &found);
    if (!has_protocol && !found.is_pickle)
        return;
    kind_refuse(is_distributed && !*found.words ? &metadata : &bare, cache, &found, error);
}

/* ---- all kinds ---- */

int bth_refuse_kind(bth_head_cache *cache, berth_error *error)
{
    static void (*const refusals[])(const bth_head_cache *, berth_error *) = {
        head_refuse_tar, head_refuse_text, head_refuse_legacy_protocol, head_refuse_pickle,
        head_refuse_words};
    static const char zeros[512];
    uint64_t nbytes = cache->reader->nbytes;
    const uint8_t *end;
    bth_head_cache first;
    char begin[24] = "";

    if (bth_head_cache_extend_head(cache, KIND_NBYTES, error) < 0)
        return error->code;
    first = *cache;
    if (first.head_nbytes > KIND_NBYTES)
        first.head_nbytes = KIND_NBYTES;
    if (first.head_nbytes == 0)
        return bth_fail_status(error, BERTH_E_TRUNCATED, "the file is empty" BTH_CUT_OFF);
    for (size_t i = 0; i < sizeof signatures / sizeof *signatures; i++)
        if (head_has_at(&first, signatures[i].at, signatures[i].bytes, signatures[i].nbytes))
            return bth_file_kind_refuse(&signatures[i].kind, cache->reader, error);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals && error->code == 0; i++)
        refusals[i](&first, error);
    if (error->code == 0 && head_has_at(&first, 0, zeros, sizeof zeros))
        return bth_fail_status(error, BERTH_E_TRUNCATED,
                               "it begins with zeros: a download or a copy that did not end?");
    /* The last part of an archive in several files begins with any bytes; its end record says its
       number. */
    if (error->code == 0 && nbytes >= BTH_ZIP_END_RECORD_NBYTES &&
        bth_head_cache_get_or_read(cache, nbytes - BTH_ZIP_END_RECORD_NBYTES,
                                   BTH_ZIP_END_RECORD_NBYTES, 0, &end, error) == 0 &&
        memcmp(end, "PK\5\6", 4) == 0 && (end[4] | end[5]) != 0)
        return bth_fail_status(error, BERTH_E_NOT_CHECKPOINT, "the last part" OF_SEVERAL_FILES);
    if (error->code < 0)
        return error->code;
    for (size_t i = 0; i < 4 && i < first.head_nbytes; i++)
        (void)snprintf(begin + 3 * i, sizeof begin - 3 * i, " %02x", first.head[i]);
    return bth_fail_status(error, BERTH_E_NOT_CHECKPOINT,
                           "neither a zip archive nor PyTorch's legacy format: it begins with%s",
                           begin);
}

int bth_folder_explain(const berth_source *source, berth_error *error)
{
    char place[4096];
    berth_error found;
    bth_reader reader;
    bth_head_cache cache;

    if (error->code != BERTH_E_NOT_CHECKPOINT || source->kind != BERTH_SOURCE_PATH ||
        snprintf(place, sizeof place, "%s/.metadata", source->path) >= (int)sizeof place)
        return error->code;
    const berth_source metadata = berth_from_path(place);
    bth_error_clear(&found);
    if (bth_reader_open_source(&metadata, &reader, &found) < 0)
        return error->code;
    bth_head_cache_initialize(&cache, &reader, BTH_LARGE_PAGES_OFF);
    if (bth_head_cache_extend_head(&cache, METADATA_NBYTES, &found) == 0)
        head_refuse_pickle(&cache, &found);
    if (found.code == BERTH_E_NOT_CHECKPOINT)
        (void)bth_error_append(error, "; in it is %s", found.message);
    bth_head_cache_free(&cache);
    bth_reader_close(&reader);
    return error->code;
}

/* ---- pickles of checkpoints ---- */

static bool error_ends_with(const berth_error *error, const char *end)
{
    size_t n = strlen(error->message), n_end = strlen(end);

    return n > n_end && strcmp(error->message + n - n_end, end) == 0;
}

int bth_pickle_explain_refusal(const uint8_t *bytes, size_t nbytes, const bth_reader *reader,
                               berth_error *error)
{
    static const bth_step convert =
        BTH_STEP(BTH_CONVERT_INERT, " NEW.pt", "saves it again without running anything");
    static const bth_step list = {"berth ls --set load.unknown_globals=inert ", "", "", "", false};
    bool for_protocol = error_ends_with(error, BTH_REFUSED_FOR_PROTOCOL);
    bool for_global = error_ends_with(error, BTH_REFUSED_FOR_GLOBAL);
    bth_found_global found;

    if (!error_is_refusal(error))
        return error->code;
    bth_pickle_find_global(bytes, nbytes, false, &found);
    /* Protocols 4 and 5 are read with inert classes, if the file is no legacy file. */
    if (for_protocol && nbytes > 2 && bytes[0] == 0x80 && bytes[1] >= 4) {
        (void)bth_error_append_step(error, ": ", &convert, reader);
        for_protocol = false;
    }
    if (*found.words && !strstr(error->message, found.words + sizeof "the " - 1))
        return bth_error_append(error, NAMES, found.words);
    if (for_global)
        return bth_error_append_step(error, ": ", &list, reader);
    if (!*found.words && for_protocol)
        return bth_error_append_step(error, ": ", &resave_by_pytorch, reader);
    return error->code;
}

int bth_legacy_explain_refusal(bth_head_cache *cache, berth_error *error)
{
    uint64_t nbytes = LEGACY_NBYTES;
    berth_error ignored;

    bth_error_clear(&ignored);
    if (error->offset != BERTH_NO_OFFSET && error->offset < cache->reader->nbytes)
        nbytes += error->offset;
    if (nbytes > cache->reader->nbytes)
        nbytes = cache->reader->nbytes;
    if (!error_is_refusal(error) || bth_head_cache_extend_head(cache, nbytes, &ignored) < 0)
        return error->code;
    return bth_pickle_explain_refusal(cache->head, (size_t)nbytes, cache->reader, error);
}
