/* SPDX-License-Identifier: BSD-3-Clause */
/* The globals that a pickle may name (P1): the rows of pickle_globals.def and of dtypes.def. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/pickle/pickle_machine.h"

const char *const bth_layout_names[] = {
    [BERTH_SPARSE_COO] = "torch.sparse_coo", [BERTH_SPARSE_CSR] = "torch.sparse_csr",
    [BERTH_SPARSE_CSC] = "torch.sparse_csc", [BERTH_SPARSE_BSR] = "torch.sparse_bsr",
    [BERTH_SPARSE_BSC] = "torch.sparse_bsc", [BERTH_STRIDED] = "torch.strided",
    [BERTH_JAGGED] = "torch.jagged",
};

#define NAMED_ROW(module, name, what, number)                                                      \
    {module, name, NULL, BTH_BUILD_NOTHING, what, 0, 0, number},

/* A storage class that torch.cuda has: no quantized one. */
#define CUDA_PLAIN(storage_class) storage_class
#define CUDA_QUANTIZED(storage_class) NULL
#define CUDA_FOREIGN(storage_class) NULL
/* A dtype that torch has. */
#define TORCH_PLAIN(name) name
#define TORCH_QUANTIZED(name) name
#define TORCH_FOREIGN(name) NULL

/* A row without a name is not found. */
const bth_known bth_globals[] = {
#define BTH_CALLABLE(module, name, build, wanted, optional)                                        \
    {module,                                                                                       \
     name,                                                                                         \
     wanted optional,                                                                              \
     BTH_BUILD_##build,                                                                            \
     BTH_IS_CALLABLE,                                                                              \
     sizeof(wanted) - 1,                                                                           \
     sizeof(wanted) + sizeof(optional) - 2,                                                        \
     0},
#define BTH_CALLABLE_TOO BTH_CALLABLE
#define BTH_NAMED(module, name, what) NAMED_ROW(module, name, what, 0)
#define BTH_TENSOR_CLASS(module, name, dtype) NAMED_ROW(module, name, BTH_IS_TENSOR_CLASS, dtype)
#define BTH_QSCHEME_GLOBAL(name, qscheme) NAMED_ROW("torch", name, BTH_IS_QSCHEME, qscheme)
#include "format/pickle/pickle_globals.def"
    NAMED_ROW("torch.storage", "UntypedStorage", BTH_IS_STORAGE_CLASS, BERTH_DTYPE_NONE)
#define DTYPE(dtype, name, nbytes, storage_class, swap_nbytes, elements, sort)                     \
    NAMED_ROW("torch", TORCH_##sort(name), BTH_IS_DTYPE, BERTH_##dtype)                            \
    NAMED_ROW("torch", storage_class, BTH_IS_STORAGE_CLASS, BERTH_##dtype)                         \
    NAMED_ROW("torch.cuda", CUDA_##sort(storage_class), BTH_IS_STORAGE_CLASS, BERTH_##dtype)
#include "format/dtypes.def"
#undef DTYPE
};

enum { N_GLOBALS = sizeof bth_globals / sizeof *bth_globals };
_Static_assert((int)N_GLOBALS <= BTH_MAX_GLOBALS, "bth_unpickler.globals");

static bool global_text_is_equal(const char *wanted, const char *text, size_t nbytes)
{
    return wanted && strlen(wanted) == nbytes && memcmp(wanted, text, nbytes) == 0;
}

/* Its row, or N_GLOBALS. */
static size_t global_find_row(const bth_argument *global)
{
    size_t i = 0;
    while (i < N_GLOBALS &&
           !(global_text_is_equal(bth_globals[i].name, global->name, global->name_nbytes) &&
             global_text_is_equal(bth_globals[i].module, global->text, global->text_nbytes)))
        i++;
    return i;
}

/* Names are printed and saved again, so only visible ASCII is accepted. */
static bool global_text_is_printable_ascii(const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c <= ' ' || c >= 0x7f)
            return false;
    }
    return nbytes > 0;
}

berth_value *bth_unpickle_make_global(bth_unpickler *unpickler, const bth_argument *argument)
{
    size_t row = global_find_row(argument), most = BTH_GLOBAL_SHOWN_NBYTES;
    const char *module = argument->text, *name = argument->name;
    size_t module_nbytes = argument->text_nbytes, name_nbytes = argument->name_nbytes;
    if (row == N_GLOBALS) {
        if (!global_text_is_printable_ascii(module, module_nbytes) ||
            !global_text_is_printable_ascii(name, name_nbytes))
            return BTH_UNPICKLE_REFUSE(unpickler, BERTH_E_PICKLE,
                                       "GLOBAL with text that is not a dotted name");
        if (unpickler->rules->inert)
            return bth_global_new(unpickler->tree, module, module_nbytes, name, name_nbytes, true);
        return BTH_UNPICKLE_REFUSE(
            unpickler, BERTH_E_FORBIDDEN,
            "global %.*s %.*s is not allowed in a checkpoint" BTH_REFUSED_FOR_GLOBAL,
            (int)(module_nbytes < most ? module_nbytes : most), module,
            (int)(name_nbytes < most ? name_nbytes : most), name);
    }
    const bth_known *known = &bth_globals[row];
    berth_value *node = unpickler->globals[row];
    if (node)
        return node;
    if (known->what == BTH_IS_DTYPE || known->what == BTH_IS_QSCHEME) {
        berth_kind kind = known->what == BTH_IS_DTYPE ? BERTH_KIND_DTYPE : BERTH_KIND_QSCHEME;
        node = berth_make_constant(unpickler->tree, kind, known->number);
    } else {
        node = bth_global_new(unpickler->tree, module, module_nbytes, name, name_nbytes, false);
        if (node)
            ((struct global_node *)node)->known = (uint32_t)row + 1;
    }
    unpickler->globals[row] = node;
    return node;
}

/* What a pickle of any protocol names. Walks the opcodes as a pickle machine does, with a stack and
 * a memo that hold texts of the file and nothing else. Builds nothing. */

/* Of each, those that were used last; the memo also has its first ones. To list all globals, it is
 * larger: 32 MiB at most. */
enum { N_VALUES = 256, N_MARKS = 256, N_KEPT = 256, MAX_LISTED_KEPT = 1 << 19 };

/* Nobody knows how deep the stack is: its marks were too many. */
#define DEPTH_UNKNOWN (SIZE_MAX / 2)

/* A value on the stack: a text of the file, as its opcode has it, or any other. */
typedef struct seen_value {
    const char *text; /* NULL: no text, or not known */
    size_t nbytes;
    uint8_t opcode;
} seen_value;

typedef struct seen_put {
    seen_value value;
    uint64_t index;
} seen_put;

typedef struct global_finder {
    seen_value values[N_VALUES]; /* value i of the stack, modulo their number */
    size_t depth;
    size_t lowest;         /* those below are not known */
    size_t marks[N_MARKS]; /* the depth below each */
    size_t n_marks;
    seen_put *memo; /* 2 * n_kept: indices below n_kept, then the others, modulo their number */
    uint64_t n_kept;
    uint64_t n_memo;
    bool underflows;
    bth_found_global *found;
} global_finder;

/* ---- stack and memo ---- */

static void finder_push(global_finder *finder, seen_value value)
{
    finder->values[finder->depth++ % N_VALUES] = value;
    if (finder->depth - finder->lowest > N_VALUES)
        finder->lowest++;
}

static seen_value finder_pop(global_finder *finder)
{
    size_t floor = finder->n_marks > 0 ? finder->marks[finder->n_marks - 1] : 0;
    if (finder->depth == floor) {
        finder->underflows = true;
        return (seen_value){0};
    }
    finder->depth--;
    if (finder->depth >= finder->lowest)
        return finder->values[finder->depth % N_VALUES];
    finder->lowest = finder->depth;
    return (seen_value){0};
}

/* ---- names ---- */

/* A name, of which no more is compared or shown. */
typedef struct shown_name {
    char text[BTH_GLOBAL_SHOWN_NBYTES + 1];
    size_t nbytes;
} shown_name;

/* The digits of an escape, or of a PUT or GET, of the base; they end where others begin. Returns
 * how many. */
static size_t digits_read(const char *at, size_t nbytes, unsigned base, uint64_t *number)
{
    size_t n = 0;
    for (*number = 0; n < nbytes; n++) {
        const char *digits = "0123456789abcdef";
        const char *digit = at[n] ? strchr(digits, at[n] | (at[n] >= 'A' ? 0x20 : 0)) : NULL;
        if (!digit || digit - digits >= (ptrdiff_t)base)
            break;
        *number = *number * base + (uint64_t)(digit - digits);
    }
    return n;
}

/* An escape of UNICODE or STRING. Returns the bytes after the backslash, 0: it is none. */
static size_t escape_read(const seen_value *value, size_t at, uint32_t *code)
{
    static const struct {
        char letter;
        uint8_t opcode, n_digits;
    } rows[] = {{'u', BTH_OP_UNICODE, 4}, {'U', BTH_OP_UNICODE, 8}, {'x', BTH_OP_STRING, 2}};
    const char *text = value->text + at;
    size_t left = value->nbytes - at, n;
    uint64_t number;
    for (size_t i = 0; left > 0 && i < sizeof rows / sizeof *rows; i++)
        if (*text == rows[i].letter && value->opcode == rows[i].opcode && left > rows[i].n_digits &&
            digits_read(text + 1, rows[i].n_digits, 16, &number) == rows[i].n_digits) {
            *code = (uint32_t)number;
            return 1 + (size_t)rows[i].n_digits;
        }
    if (left == 0 || value->opcode != BTH_OP_STRING)
        return 0;
    n = digits_read(text, left < 3 ? left : 3, 8, &number);
    *code = n > 0 ? (uint32_t)number : (uint8_t)*text;
    return n > 0 ? n : 1;
}

/* As Python reads the text. NUL, and what an escape says beyond ASCII, becomes '?'. */
static void name_read(seen_value value, shown_name *name)
{
    bool is_escaped = value.opcode == BTH_OP_UNICODE || value.opcode == BTH_OP_STRING;
    if (value.opcode == BTH_OP_STRING && value.nbytes >= 2) {
        value.text++;
        value.nbytes -= 2;
    }
    name->nbytes = 0;
    for (size_t i = 0; i < value.nbytes && name->nbytes < BTH_GLOBAL_SHOWN_NBYTES; i++) {
        uint32_t code = (uint8_t)value.text[i];
        size_t used = is_escaped && code == '\\' ? escape_read(&value, i + 1, &code) : 0;
        bool is_shown = used == 0 ? code != 0 : code >= ' ' && code < 0x7f;
        name->text[name->nbytes++] = (char)(is_shown ? code : '?');
        i += used;
    }
    name->text[name->nbytes] = '\0';
}

static const char distributed_package[] = "torch.distributed.checkpoint.";

/* What the .metadata of a checkpoint in a directory consists of: PyTorch's own classes there, the
 * directory's path, and getattr, by which Python 3.11.0 to 3.11.3 pickle members of an Enum. */
static bool name_is_of_distributed_checkpoint(const shown_name *module, const shown_name *name)
{
    if (strcmp(module->text, "builtins") == 0)
        return strcmp(name->text, "getattr") == 0;
    if (strcmp(module->text, "pathlib") == 0 || strcmp(module->text, "pathlib._local") == 0)
        return strcmp(name->text, "PosixPath") == 0 || strcmp(name->text, "WindowsPath") == 0;
    return strncmp(module->text, distributed_package, sizeof distributed_package - 1) == 0 &&
           (*name->text == '_' || (*name->text >= 'A' && *name->text <= 'Z')) &&
           !strchr(name->text, '.');
}

static void finder_see_global(global_finder *finder, seen_value module, seen_value name)
{
    bth_found_global *found = finder->found;
    shown_name shown[2] = {{"?", 1}, {"?", 1}};
    if (!found->report && (*found->words || !module.text || !name.text))
        return;
    if (module.text)
        name_read(module, &shown[0]);
    if (name.text)
        name_read(name, &shown[1]);
    bool is_known = global_find_row(&(bth_argument){.text = shown[0].text,
                                                    .text_nbytes = shown[0].nbytes,
                                                    .name = shown[1].text,
                                                    .name_nbytes = shown[1].nbytes}) < N_GLOBALS;
    if (found->report)
        found->report(found->context, shown[0].text, shown[1].text, is_known);
    if (is_known || *found->words ||
        (found->ignores_distributed && name_is_of_distributed_checkpoint(&shown[0], &shown[1])))
        return;
    (void)snprintf(found->words, sizeof found->words, "the global %s %s", shown[0].text,
                   shown[1].text);
    /* Dotted names in ASCII, as a text of another kind that begins like a pickle hardly has them.
     */
    const char dotted[] = "._0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    found->is_dotted = shown[0].nbytes > 0 && shown[1].nbytes > 0 &&
                       strspn(shown[0].text, dotted) == shown[0].nbytes &&
                       strspn(shown[1].text, dotted) == shown[1].nbytes;
}

/* ---- opcodes ---- */

static void finder_take_and_give(global_finder *finder, uint8_t opcode)
{
    int takes = bth_opcodes[opcode].takes;
    if (takes == BTH_TO_MARK && finder->n_marks > 0) {
        finder->depth = finder->marks[--finder->n_marks];
        if (finder->lowest > finder->depth)
            finder->lowest = finder->depth;
    } else if (takes == BTH_TO_MARK) {
        finder->underflows |= finder->depth < DEPTH_UNKNOWN / 2;
    }
    for (int i = 0; i < takes; i++)
        (void)finder_pop(finder);
    for (int i = 0; i < bth_opcodes[opcode].gives; i++)
        finder_push(finder, (seen_value){0});
}

static void finder_see_extension(const global_finder *finder, int64_t code)
{
    bth_found_global *found = finder->found;
    char number[24];
    (void)snprintf(number, sizeof number, "%" PRId64, code);
    if (found->report)
        found->report(found->context, "(extension code)", number, false);
    if (!*found->words)
        (void)snprintf(found->words, sizeof found->words, "the global of extension code %s",
                       number);
}

static void finder_run_opcode(global_finder *finder, uint8_t opcode, const bth_argument *argument)
{
    static const uint8_t texts[] = {
        BTH_OP_BINUNICODE, BTH_OP_SHORT_BINUNICODE, BTH_OP_BINUNICODE8,    BTH_OP_UNICODE,
        BTH_OP_STRING,     BTH_OP_BINSTRING,        BTH_OP_SHORT_BINSTRING};
    static const uint8_t calls[] = {BTH_OP_REDUCE, BTH_OP_INST,      BTH_OP_OBJ,
                                    BTH_OP_NEWOBJ, BTH_OP_NEWOBJ_EX, BTH_OP_BUILD};
    seen_value first = {argument->text, argument->text_nbytes, opcode};
    seen_value second = {argument->name, argument->name_nbytes, opcode};
    uint64_t index = opcode == BTH_OP_MEMOIZE ? finder->n_memo : (uint32_t)argument->number;
    if (opcode == BTH_OP_PUT || opcode == BTH_OP_GET)
        (void)digits_read(argument->text, argument->text_nbytes, 10, &index);
    uint64_t n_kept = finder->n_kept;
    assert(n_kept >= N_KEPT);
    seen_put *put = &finder->memo[index < n_kept ? index : n_kept + index % n_kept];
    switch (opcode) {
    case BTH_OP_MARK:
        if (finder->n_marks < N_MARKS) {
            finder->marks[finder->n_marks++] = finder->depth;
        } else {
            finder->n_marks = 0;
            finder->depth = finder->lowest = DEPTH_UNKNOWN;
        }
        break;
    case BTH_OP_POP: /* of a mark, too */
        if (finder->n_marks > 0 && finder->marks[finder->n_marks - 1] == finder->depth)
            finder->n_marks--;
        else
            (void)finder_pop(finder);
        break;
    case BTH_OP_DUP:
    case BTH_OP_BINPUT:
    case BTH_OP_LONG_BINPUT:
    case BTH_OP_PUT:
    case BTH_OP_MEMOIZE:
        first = finder_pop(finder);
        finder_push(finder, first);
        if (opcode == BTH_OP_DUP) {
            finder_push(finder, first);
        } else {
            *put = (seen_put){first, index};
            finder->n_memo++;
        }
        break;
    case BTH_OP_BINGET:
    case BTH_OP_LONG_BINGET:
    case BTH_OP_GET:
        finder_push(finder, put->index == index ? put->value : (seen_value){0});
        break;
    case BTH_OP_STACK_GLOBAL:
        second = finder_pop(finder);
        first = finder_pop(finder);
        finder_see_global(finder, first, second);
        finder_push(finder, (seen_value){0});
        break;
    default:
        if (opcode == BTH_OP_GLOBAL || opcode == BTH_OP_INST)
            finder_see_global(finder, first, second);
        else if (opcode == BTH_OP_EXT1 || opcode == BTH_OP_EXT2 || opcode == BTH_OP_EXT4)
            finder_see_extension(finder, argument->number);
        if (memchr(texts, opcode, sizeof texts))
            finder_push(finder, first);
        else
            finder_take_and_give(finder, opcode);
    }
    finder->found->is_called |= *finder->found->words && memchr(calls, opcode, sizeof calls);
}

/* Walks the pickles that follow each other; while_unfound: up to the first global. Returns the
 * bytes that they have; SIZE_MAX: the last one does not end here. */
static size_t finder_walk_pickles(const global_finder *empty, const uint8_t *bytes, size_t nbytes,
                                  size_t n_pickles, bool while_unfound)
{
    bth_found_global *found = empty->found;
    size_t at = 0;
    for (size_t i = 0; i < n_pickles && !(while_unfound && *found->words); i++) {
        global_finder finder = *empty;
        bool has_stop = false; /* else it is cut off, or has no opcode there */
        while (at < nbytes) {
            bth_argument argument = {0};
            uint8_t opcode = bytes[at++];
            has_stop = opcode == BTH_OP_STOP;
            if (has_stop)
                break;
            size_t used = bth_scan_argument(opcode, bytes + at, nbytes - at, &argument);
            if (used == SIZE_MAX)
                break;
            finder_run_opcode(&finder, opcode, &argument);
            at += used;
        }
        if (finder.n_memo > 0) /* each pickle has a memo of its own */
            memset(finder.memo, 0, 2 * (size_t)finder.n_kept * sizeof *finder.memo);
        bool is_whole = has_stop && finder.depth == 1 && finder.n_marks == 0;
        bool is_called = found->is_called && found->is_dotted;
        if (i == 0)
            found->is_pickle = !finder.underflows && (is_whole || is_called);
        if (!has_stop)
            return SIZE_MAX;
    }
    return at;
}

void bth_pickle_find_global(const uint8_t *bytes, size_t nbytes, bool ignores_distributed,
                            bth_found_global *found)
{
    seen_put memo[2 * N_KEPT] = {0};
    const global_finder finder = {.found = found, .memo = memo, .n_kept = N_KEPT};
    *found = (bth_found_global){.ignores_distributed = ignores_distributed};
    (void)finder_walk_pickles(&finder, bytes, nbytes, BTH_LEGACY_N_PICKLES, true);
}

int bth_pickle_list_globals(const uint8_t *bytes, size_t nbytes, size_t n_pickles,
                            bth_global_seen report, void *context, bool *is_whole,
                            berth_error *error)
{
    bth_found_global found = {.report = report, .context = context};
    /* Only in protocols 4 and 5 names come from the memo. Each entry takes a byte of the pickle. */
    bool has_names_in_memo = nbytes > 1 && bytes[0] == BTH_OP_PROTO && bytes[1] >= 4;
    size_t n_all = nbytes / 2 < MAX_LISTED_KEPT ? nbytes / 2 + 1 : MAX_LISTED_KEPT;
    size_t n_kept = has_names_in_memo && n_all > N_KEPT ? n_all : N_KEPT;
    global_finder finder = {.found = &found, .n_kept = n_kept};
    finder.memo = bth_allocate_zeroed(2 * n_kept * sizeof *finder.memo);
    if (!finder.memo)
        return bth_fail_memory(error, 2 * n_kept * sizeof *finder.memo);
    *is_whole = finder_walk_pickles(&finder, bytes, nbytes, n_pickles, false) != SIZE_MAX;
    bth_release(finder.memo);
    return 0;
}
