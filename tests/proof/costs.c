/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * P3: what the worst inputs cost. Pickles and directories that make as much as they can of few
 * bytes: memory at the peak and processor time a byte, that neither grows with the input, and how
 * much stack the parsers ever use, measured by a stack of known bytes. Without optimisation time is
 * some five times that of a release; under sanitizers neither time nor stack is judged.
 */
#include <malloc.h>
#include <pthread.h>
#include <time.h>

#include "format/layout.h"
#include "format/names/names.h"
#include "format/zip/zip.h"
#include "tests/support/format/pickle_assembler.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED true
#else
#define IS_SANITIZED false
#endif

enum { MAX_PER_BYTE = 64, MAX_FIXED = 65536, MAX_NANOSECONDS = 1000, MAX_STACK = 32768 };
enum { N_ROUNDS = 3, N_WORDS = 60000, N_RECORDS = 20000, STACK_NBYTES = 1 << 20, PAINT = 0xa5 };
/*
 * Each of the sizes is twice the one before it; a byte may cost so many times what it does in the
 * first. What is quadratic costs 8 times as much. The limit of time is far above 1, since caches
 * hold less of a larger input, and the less the busier the machine is.
 */
enum { N_SIZES = 4, MAX_TRIES = 40 };
#define MAX_GROWTH_OF_MEMORY 1.25
#define MAX_GROWTH_OF_TIME 3.0

static struct {
    double nbytes;      /* of memory a byte of input, the fixed part taken off */
    double nanoseconds; /* a byte of input */
    size_t stack_nbytes;
    const char *hungry, *slow, *deep;
} worst;

static struct {
    double memory, time; /* a byte, in large inputs to that in small ones */
    const char *hungry, *slow;
} worst_growth;

/* ---- what is measured ---- */

typedef struct cost {
    const char *name;
    const uint8_t *bytes;
    size_t nbytes;
    void (*parse)(const struct cost *cost);
    double seconds;
} cost;

/* A kind of input: `words` n times, or as make does it. */
struct kind {
    const char *name;
    const char *before, *words;
    size_t n;
    const char *after;
    void (*make)(const struct kind *kind, size_t n, struct pickle *made);
    void (*parse)(const cost *asked);
};

static double now(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void *parse_on_painted_stack(void *context)
{
    cost *asked = context;
    double begin = now();

    asked->parse(asked);
    asked->seconds = now() - begin;
    return NULL;
}

/* How much of its stack the thread has touched, of whom the painter told. */
static size_t run_painted(cost *asked)
{
    static _Alignas(4096) uint8_t stack[STACK_NBYTES];
    pthread_attr_t attributes;
    pthread_t thread;
    size_t untouched = 0;

    memset(stack, PAINT, sizeof stack);
    cr_assert_eq(pthread_attr_init(&attributes), 0);
    cr_assert_eq(pthread_attr_setstack(&attributes, stack, sizeof stack), 0);
    cr_assert_eq(pthread_create(&thread, &attributes, parse_on_painted_stack, asked), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    (void)pthread_attr_destroy(&attributes);
    while (untouched < sizeof stack && stack[untouched] == PAINT)
        untouched++;
    return sizeof stack - untouched;
}

static void do_nothing(const cost *asked)
{
    (void)asked;
}

/* Stack of a thread that does nothing: its own descriptor and local storage. */
static size_t stack_of_nothing(void)
{
    cost nothing = {.parse = do_nothing};

    return run_painted(&nothing);
}

static cost cost_of(const struct kind *kind, size_t n, struct pickle *made)
{
    kind->make(kind, n, made);
    return (cost){
        .name = kind->name, .bytes = made->bytes, .nbytes = made->nbytes, .parse = kind->parse};
}

static uint64_t peak_of(const cost *asked)
{
    test_memory_watch();
    asked->parse(asked);
    uint64_t peak = test_memory_seen().peak_nbytes;
    cr_expect_eq(test_memory_seen().live_nbytes, 0, "%s leaks", asked->name);
    test_memory_unwatch();
    return peak;
}

static void judge_bounds(const struct kind *kind)
{
    struct pickle made = {0};
    cost asked = cost_of(kind, kind->n, &made);
    double seconds = 1e9;
    size_t stack = 0, idle = stack_of_nothing();
    uint64_t peak = peak_of(&asked);
    double limit = IS_SANITIZED ? seconds : MAX_NANOSECONDS * 1e-9 * (double)asked.nbytes;

    for (int i = 0; i < N_ROUNDS || (i < MAX_TRIES && seconds > limit); i++) {
        size_t used = run_painted(&asked);
        stack = used > stack ? used : stack;
        seconds = asked.seconds < seconds ? asked.seconds : seconds;
    }
    stack = stack > idle ? stack - idle : 0;
    double nbytes = (double)asked.nbytes;
    double each = peak > MAX_FIXED ? (double)(peak - MAX_FIXED) / nbytes : 0;
    double nanoseconds = seconds * 1e9 / nbytes;
    printf("  %-40s %9zu bytes: %5.1f bytes and %6.1f ns a byte, %6zu bytes of stack\n", kind->name,
           asked.nbytes, each, nanoseconds, stack);
    cr_expect_leq(each, MAX_PER_BYTE, "%s: %.1f bytes a byte", kind->name, each);
    if (!IS_SANITIZED) {
        cr_expect_leq(nanoseconds, MAX_NANOSECONDS, "%s: %.1f ns a byte", kind->name, nanoseconds);
        cr_expect_leq(stack, MAX_STACK, "%s: %zu bytes of stack", kind->name, stack);
    }
    if (each >= worst.nbytes)
        worst.nbytes = each, worst.hungry = kind->name;
    if (nanoseconds >= worst.nanoseconds)
        worst.nanoseconds = nanoseconds, worst.slow = kind->name;
    if (stack >= worst.stack_nbytes)
        worst.stack_nbytes = stack, worst.deep = kind->name;
    free(made.bytes);
}

/* ---- growth ---- */

/* Seconds of one run, of so many together that a millisecond is measured, or one run is longer. */
static double seconds_of(const cost *asked, size_t n_runs)
{
    double begin = now();

    for (size_t i = 0; i < n_runs; i++)
        asked->parse(asked);
    return (now() - begin) / (double)n_runs;
}

/* By how much a byte costs more in a larger input than in the smallest, at most. */
static double growth_of(const cost sizes[N_SIZES], const double costs[N_SIZES])
{
    double most = 0;

    for (int i = 1; i < N_SIZES; i++) {
        double growth = costs[i] / (double)sizes[i].nbytes * (double)sizes[0].nbytes / costs[0];
        most = growth > most ? growth : most;
    }
    return most;
}

/*
 * A busy machine only ever adds to a time, so the least of several tries counts; they go on until
 * that is good, and are given up after a while.
 */
static double time_growth(const cost sizes[N_SIZES])
{
    double least[N_SIZES], growth = 0;
    size_t n_runs = 1;

    while (seconds_of(&sizes[0], n_runs) * (double)n_runs < 0.001)
        n_runs *= 2;
    for (int try = 0; try < MAX_TRIES && (try < N_ROUNDS || growth > MAX_GROWTH_OF_TIME); try++) {
        for (int i = 0; i < N_SIZES; i++) {
            double seconds = seconds_of(&sizes[i], (n_runs >> i) + !(n_runs >> i));
            least[i] = try == 0 || seconds < least[i] ? seconds : least[i];
        }
        growth = growth_of(sizes, least);
    }
    return growth;
}

static void judge_growth(const struct kind *kind)
{
    struct pickle made[N_SIZES] = {0};
    cost sizes[N_SIZES];
    double peaks[N_SIZES];

    for (int i = 0; i < N_SIZES; i++) {
        sizes[i] = cost_of(kind, kind->n >> (N_SIZES - 1 - i), &made[i]);
        peaks[i] = (double)peak_of(&sizes[i]);
    }
    double memory = growth_of(sizes, peaks), time = IS_SANITIZED ? 0 : time_growth(sizes);
    printf("  %-40s %7zu to %9zu bytes: %.2f times the memory, %.2f times the time a byte\n",
           kind->name, sizes[0].nbytes, sizes[N_SIZES - 1].nbytes, memory, time);
    cr_expect_leq(memory, MAX_GROWTH_OF_MEMORY, "%s: memory grows by %.2f a byte", kind->name,
                  memory);
    cr_expect_leq(time, MAX_GROWTH_OF_TIME, "%s: time grows by %.2f a byte", kind->name, time);
    if (memory >= worst_growth.memory)
        worst_growth.memory = memory, worst_growth.hungry = kind->name;
    if (time >= worst_growth.time)
        worst_growth.time = time, worst_growth.slow = kind->name;
    for (int i = 0; i < N_SIZES; i++)
        free(made[i].bytes);
}

/* ---- pickles ---- */

static bool inert;

/* Reads, names all tensors, and frees; whether it is accepted is no matter here. */
static void parse_pickle(const cost *asked)
{
    bth_pickle_rules rules = {.record = "data.pkl", .inert = inert};
    berth_tree *tree = berth_tree_new(NULL);
    bth_names *names = NULL;
    berth_value *root = NULL;
    berth_error error;

    bth_error_clear(&error);
    if (bth_pickle_read(asked->bytes, asked->nbytes, &rules, tree, &root, &error) == 0)
        (void)bth_names_new(root, &names, &error);
    bth_names_free(names);
    berth_tree_free(tree);
}

static void repeat_words(const struct kind *kind, size_t n, struct pickle *made)
{
    assemble(made, kind->before);
    assemble_times(made, kind->words, n);
    assemble(made, kind->after);
}

static void count_one(struct pickle *made, const char *words, int i)
{
    char text[100];

    (void)snprintf(text, sizeof text, words, i);
    assemble(made, text);
}

/* Each key another one, all of `sort`: '%d' made text, int, float, tuple. */
static void count_words(const struct kind *kind, size_t n, struct pickle *made)
{
    assemble(made, kind->before);
    for (size_t i = 0; i < n; i++)
        count_one(made, kind->words, (int)i);
    assemble(made, kind->after);
}

static void parse_inert_pickle(const cost *asked)
{
    inert = true;
    parse_pickle(asked);
    inert = false;
}

/* A text of n bytes is the key n times: its bytes are hashed and compared once. */
static void repeat_long_key(const struct kind *kind, size_t n, struct pickle *made)
{
    char *text = malloc(n);

    memset(text, 'k', n);
    assemble(made, kind->before);
    for (int i = 0; i < 100; i++) /* so many that there is a table */
        count_one(made, "%d NONE", i);
    put_text(made, text, n);
    assemble(made, "BINPUT 0 NONE");
    assemble_times(made, kind->words, n);
    assemble(made, kind->after);
    free(text);
}

#define REPEATED .make = repeat_words, .parse = parse_pickle
#define COUNTED                                                                                    \
    .before = "EMPTY_DICT MARK", .n = N_WORDS, .after = "SETITEMS STOP", .make = count_words,      \
    .parse = parse_pickle
#define KEPT_INERT .make = repeat_words, .parse = parse_inert_pickle

/* What is read at once from the second on; of rank 0 it is shortest. */
#define FIRST_USUAL                                                                                \
    "EMPTY_LIST MARK GLOBAL torch._utils _rebuild_tensor_v2 BINPUT 0 MARK MARK 'storage' BINPUT "  \
    "1 GLOBAL torch FloatStorage BINPUT 2 '0' BINPUT 5 'cpu' BINPUT 3 BININT1 1 TUPLE BINPERSID "  \
    "BININT1 0 EMPTY_TUPLE EMPTY_TUPLE NEWFALSE GLOBAL collections OrderedDict BINPUT 4 "          \
    "EMPTY_TUPLE REDUCE TUPLE REDUCE "
#define FURTHER_USUAL                                                                              \
    "BINGET 0 MARK MARK BINGET 1 BINGET 2 BINGET 5 BINGET 3 BININT1 1 TUPLE BINPUT 6 BINPERSID "   \
    "BININT1 0 EMPTY_TUPLE EMPTY_TUPLE NEWFALSE BINGET 4 EMPTY_TUPLE REDUCE BINPUT 7 TUPLE "       \
    "BINPUT 8 REDUCE "

static const struct kind pickles[] = {
    {"doubling", "EMPTY_TUPLE BINPUT 0", "BINGET 0 TUPLE2 BINPUT 0", N_WORDS, "STOP", REPEATED},
    {"chain of tuples", "NONE", "TUPLE1", 10 * N_WORDS, "STOP", REPEATED},
    {"marks", "", "MARK", 10 * N_WORDS, "STOP", REPEATED},
    {"empty lists", "MARK", "EMPTY_LIST", 10 * N_WORDS, "TUPLE STOP", REPEATED},
    {"empty dicts", "MARK", "EMPTY_DICT", 10 * N_WORDS, "TUPLE STOP", REPEATED},
    {"empty sets", "MARK", "EMPTY_SET", 10 * N_WORDS, "TUPLE STOP", REPEATED},
    {"lists of one", "MARK", "EMPTY_LIST NONE APPEND", N_WORDS, "TUPLE STOP", REPEATED},
    {"dicts of one", "MARK", "EMPTY_DICT NONE NONE SETITEM", N_WORDS, "TUPLE STOP", REPEATED},
    {"sets made of a list", "MARK", "GLOBAL __builtin__ set EMPTY_LIST NONE APPEND TUPLE1 REDUCE",
     N_WORDS / 4, "TUPLE STOP", REPEATED},
    {"marked tuples", "MARK", "MARK TUPLE", N_WORDS, "TUPLE STOP", REPEATED},
    {"floats", "MARK", "BINFLOAT 0.5", N_WORDS, "TUPLE STOP", REPEATED},
    {"ints", "MARK", "BININT2 1000", N_WORDS, "TUPLE STOP", REPEATED},
    {"empty texts", "MARK", "''", N_WORDS, "TUPLE STOP", REPEATED},
    {"memo of each", "MARK", "EMPTY_LIST BINPUT 0", N_WORDS, "TUPLE STOP", REPEATED},
    {"appends one by one", "EMPTY_LIST", "NONE APPEND", N_WORDS, "STOP", REPEATED},
    {"nested lists", "", "EMPTY_LIST", 4 * N_WORDS, "STOP", REPEATED},
    {"one item in many batches", "EMPTY_DICT", "MARK NONE NONE SETITEMS", N_WORDS, "STOP",
     REPEATED},
    {"keys of text", .words = "'%d' NONE", COUNTED},
    {"keys of ints", .words = "%d NONE", COUNTED},
    {"keys of floats", .words = "BINFLOAT %d.5 NONE", COUNTED},
    {"keys of tuples", .words = "%d TUPLE1 NONE", COUNTED},
    {"keys of long ints", .words = "LONG1 0x%016d0102 NONE", COUNTED},
    {"one long key again and again", "EMPTY_DICT MARK", "BINGET 0 NONE", N_WORDS, "SETITEMS STOP",
     repeat_long_key, parse_pickle},
    {"globals", "MARK", "GLOBAL torch int1", N_WORDS / 4, "TUPLE STOP", REPEATED},
    {"the last global of the table", "MARK", "GLOBAL torch.cuda LongStorage", N_WORDS / 4,
     "TUPLE STOP", REPEATED},
    {"sizes", "MARK", "GLOBAL torch Size 1 TUPLE1 TUPLE1 REDUCE", N_WORDS / 4, "TUPLE STOP",
     REPEATED},
    {"tensors", "MARK", TENSOR, N_WORDS / 20, "TUPLE STOP", REPEATED},
    {"usual tensors", FIRST_USUAL, FURTHER_USUAL, N_WORDS / 10, "APPENDS STOP", REPEATED},
    {"storages", "MARK", FLOATS, N_WORDS / 10, "TUPLE STOP", REPEATED},
    {"ordered dicts", "GLOBAL collections OrderedDict BINPUT 0 TUPLE1 MARK",
     "BINGET 0 EMPTY_TUPLE REDUCE", N_WORDS, "TUPLE TUPLE2 STOP", REPEATED},
    {"bytes of text", "MARK", "GLOBAL _codecs encode 'a' 'latin1' TUPLE2 REDUCE", N_WORDS / 4,
     "TUPLE STOP", REPEATED},
    {"inert objects", "GLOBAL a b BINPUT 0 MARK", "BINGET 0 EMPTY_TUPLE NEWOBJ", N_WORDS,
     "TUPLE TUPLE2 STOP", KEPT_INERT},
    {"inert objects with an item", "GLOBAL a b BINPUT 0 MARK",
     "BINGET 0 EMPTY_TUPLE NEWOBJ NONE APPEND", N_WORDS, "TUPLE TUPLE2 STOP", KEPT_INERT},
    {"unknown globals", "MARK", "GLOBAL a b", N_WORDS, "TUPLE STOP", KEPT_INERT},
};

/* ---- directories ---- */

static void parse_directory(const cost *asked)
{
    size_t tail = asked->nbytes < BTH_ZIP_TAIL_NBYTES ? asked->nbytes : BTH_ZIP_TAIL_NBYTES;
    bth_zip_directory directory = {0};
    bth_zip_end end;
    berth_error error;

    bth_error_clear(&error);
    if (bth_zip_find_end(asked->bytes + asked->nbytes - tail, tail, asked->nbytes, &end, &error) <
            0 ||
        bth_zip_read_directory(asked->bytes + end.directory_offset, &end, &directory, &error) < 0)
        return;
    (void)bth_zip_find(&directory, "none", 4);
    bth_zip_free_directory(&directory);
}

/* A file of empty records, which are 30 bytes and a name; `words` makes the nth's. */
static void make_directory(const struct kind *kind, size_t n, struct pickle *made)
{
    bth_layout_entry *places = calloc(n, sizeof *places);
    char(*names)[300] = calloc(n, sizeof *names);
    uint64_t at = 0;

    made->bytes = calloc(n, 1000);
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(names[i], sizeof names[i], kind->words, (int)i);
        cr_assert_eq(bth_layout_entry_compute(at, strlen(names[i]), 0, 1, &places[i]), 0);
        bth_zip_write_local(&places[i], names[i], made->bytes + at);
        at = places[i].next_offset;
    }
    uint64_t directory_at = at;
    for (size_t i = 0; i < n; i++) {
        bth_zip_write_central(&places[i], names[i], 0, made->bytes + at);
        at += bth_layout_central_entry_nbytes(&places[i]);
    }
    bth_zip_write_end(n, directory_at, at - directory_at, made->bytes + at);
    made->nbytes = at + BTH_ZIP_END_NBYTES;
    free(places), free(names);
}

/* Every byte may begin an end record; only the last one does. */
static void make_tail(const struct kind *kind, size_t n, struct pickle *made)
{
    for (size_t i = 0; i < n; i++)
        put(made, &kind->words[i % 4], 1);
}

#define DIRECTORY .n = N_RECORDS, .make = make_directory, .parse = parse_directory
#define TAIL .n = BTH_ZIP_TAIL_NBYTES, .make = make_tail, .parse = parse_directory

static const struct kind directories[] = {
    {"records", .words = "m/%d", DIRECTORY},
    {"records with long names", .words = "m/%0250d", DIRECTORY},
    {"a tail of end records", .words = "PK\5\6", TAIL},
    {"a tail of beginnings", .words = "PPPP", TAIL},
};

/* ---- tests ---- */

static void judge_all(void (*judge)(const struct kind *kind))
{
    for (size_t i = 0; i < sizeof pickles / sizeof *pickles; i++)
        judge(&pickles[i]);
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
        judge(&directories[i]);
}

Test(costs, of_the_worst_inputs_are_bounded)
{
    judge_all(judge_bounds);
    printf("worst bytes per input byte: %.1f (%s)\n", worst.nbytes, worst.hungry);
    printf("worst nanoseconds per input byte: %.0f (%s)\n", worst.nanoseconds, worst.slow);
    printf("peak stack of the parsers: %zu bytes (%s)\n", worst.stack_nbytes, worst.deep);
}

Test(costs, grow_as_the_input_grows_and_no_faster)
{
    /* Memory stays the process's: only large inputs would ask the kernel for it, at a price. */
    (void)mallopt(M_MMAP_MAX, 0);
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
    judge_all(judge_growth);
    printf("worst growth of memory a byte, of inputs 8 times as long: %.2f (%s)\n",
           worst_growth.memory, worst_growth.hungry);
    printf("worst growth of time a byte, of inputs 8 times as long: %.2f (%s)\n", worst_growth.time,
           worst_growth.slow);
}
