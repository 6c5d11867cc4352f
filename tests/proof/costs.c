/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * P3: what the worst inputs cost. Pickles and directories that make as much as they can of few
 * bytes: memory at the peak and processor time a byte, and how much stack the parsers ever use,
 * measured by a stack of known bytes. Without optimisation time is some five times that of a
 * release; under sanitizers neither time nor stack is judged.
 */
#include <pthread.h>
#include <time.h>

#include "format/layout.h"
#include "format/names.h"
#include "format/zip_read.h"
#include "format/zip_write.h"
#include "tests/format/pickle_assembler.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED true
#else
#define IS_SANITIZED false
#endif

enum { MOST_PER_BYTE = 64, MOST_FIXED = 65536, MOST_NANOSECONDS = 1000, MOST_STACK = 32768 };
enum { N_ROUNDS = 3, N_WORDS = 60000, N_RECORDS = 20000, STACK_NBYTES = 1 << 20, PAINT = 0xa5 };

static struct {
    double nbytes;      /* of memory a byte of input, the fixed part taken off */
    double nanoseconds; /* a byte of input */
    size_t stack_nbytes;
    const char *hungry, *slow, *deep;
} worst;

/* ---- what is measured ---- */

typedef struct cost {
    const char *name;
    const uint8_t *bytes;
    size_t nbytes;
    void (*parse)(const struct cost *cost);
    double seconds;
} cost;

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

static void measure(const char *name, const void *bytes, size_t nbytes,
                    void (*parse)(const cost *asked))
{
    cost asked = {.name = name, .bytes = bytes, .nbytes = nbytes, .parse = parse};
    double seconds = 1e9;
    size_t stack = 0, idle = stack_of_nothing();

    test_memory_watch();
    parse(&asked);
    uint64_t peak = test_memory_seen().peak_nbytes;
    cr_expect_eq(test_memory_seen().live_nbytes, 0, "%s leaks", name);
    test_memory_unwatch();
    for (int i = 0; i < N_ROUNDS; i++) {
        size_t used = run_painted(&asked);
        stack = used > stack ? used : stack;
        seconds = asked.seconds < seconds ? asked.seconds : seconds;
    }
    stack = stack > idle ? stack - idle : 0;
    double each = peak > MOST_FIXED ? (double)(peak - MOST_FIXED) / (double)nbytes : 0;
    double nanoseconds = seconds * 1e9 / (double)nbytes;
    printf("  %-40s %9zu bytes: %5.1f bytes and %6.1f ns a byte, %6zu bytes of stack\n", name,
           nbytes, each, nanoseconds, stack);
    cr_expect_leq(each, MOST_PER_BYTE, "%s: %.1f bytes a byte", name, each);
    if (!IS_SANITIZED) {
        cr_expect_leq(nanoseconds, MOST_NANOSECONDS, "%s: %.1f ns a byte", name, nanoseconds);
        cr_expect_leq(stack, MOST_STACK, "%s: %zu bytes of stack", name, stack);
    }
    if (each >= worst.nbytes)
        worst.nbytes = each, worst.hungry = name;
    if (nanoseconds >= worst.nanoseconds)
        worst.nanoseconds = nanoseconds, worst.slow = name;
    if (stack >= worst.stack_nbytes)
        worst.stack_nbytes = stack, worst.deep = name;
}

/* ---- pickles ---- */

static bool inert;

/* Reads, names all tensors, and frees; whether it is accepted is no matter here. */
static void parse_pickle(const cost *asked)
{
    berth_pickle_rules rules = {.record = "data.pkl", .inert = inert};
    berth_tree *tree = berth_tree_new(NULL);
    berth_names *names = NULL;
    berth_value *root = NULL;
    berth_error error;

    berth_error_clear(&error);
    if (berth_pickle_read(asked->bytes, asked->nbytes, &rules, tree, &root, &error) == 0)
        (void)berth_names_new(root, &names, &error);
    berth_names_free(names);
    berth_tree_free(tree);
}

static void measure_pickle(const char *name, const char *before, const char *words, size_t n,
                           const char *after)
{
    struct pickle pickle = {0};

    assemble(&pickle, before);
    assemble_times(&pickle, words, n);
    assemble(&pickle, after);
    measure(name, pickle.bytes, pickle.nbytes, parse_pickle);
    free(pickle.bytes);
}

/* Each key another one, all of `sort`: '%d' made text, int, float, tuple. */
static void measure_keys(const char *name, const char *words)
{
    struct pickle pickle = {0};
    char text[100];

    assemble(&pickle, "EMPTY_DICT MARK");
    for (int i = 0; i < N_WORDS; i++) {
        (void)snprintf(text, sizeof text, words, i);
        assemble(&pickle, text);
    }
    assemble(&pickle, "SETITEMS STOP");
    measure(name, pickle.bytes, pickle.nbytes, parse_pickle);
    free(pickle.bytes);
}

static void measure_small_parts(void)
{
    measure_pickle("doubling", "EMPTY_TUPLE BINPUT 0", "BINGET 0 TUPLE2 BINPUT 0", N_WORDS, "STOP");
    measure_pickle("chain of tuples", "NONE", "TUPLE1", 10 * N_WORDS, "STOP");
    measure_pickle("marks", "", "MARK", 10 * N_WORDS, "STOP");
    measure_pickle("empty lists", "MARK", "EMPTY_LIST", 10 * N_WORDS, "TUPLE STOP");
    measure_pickle("empty dicts", "MARK", "EMPTY_DICT", 10 * N_WORDS, "TUPLE STOP");
    measure_pickle("empty sets", "MARK", "EMPTY_SET", 10 * N_WORDS, "TUPLE STOP");
    measure_pickle("lists of one", "MARK", "EMPTY_LIST NONE APPEND", N_WORDS, "TUPLE STOP");
    measure_pickle("dicts of one", "MARK", "EMPTY_DICT NONE NONE SETITEM", N_WORDS, "TUPLE STOP");
    measure_pickle("sets made of a list", "MARK",
                   "GLOBAL __builtin__ set EMPTY_LIST NONE APPEND TUPLE1 REDUCE", N_WORDS / 4,
                   "TUPLE STOP");
    measure_pickle("marked tuples", "MARK", "MARK TUPLE", N_WORDS, "TUPLE STOP");
    measure_pickle("floats", "MARK", "BINFLOAT 0.5", N_WORDS, "TUPLE STOP");
    measure_pickle("ints", "MARK", "BININT2 1000", N_WORDS, "TUPLE STOP");
    measure_pickle("empty texts", "MARK", "''", N_WORDS, "TUPLE STOP");
    measure_pickle("memo of each", "MARK", "EMPTY_LIST BINPUT 0", N_WORDS, "TUPLE STOP");
    measure_pickle("appends one by one", "EMPTY_LIST", "NONE APPEND", N_WORDS, "STOP");
    measure_pickle("nested lists", "", "EMPTY_LIST", 4 * N_WORDS, "STOP");
    measure_pickle("one item in many batches", "EMPTY_DICT", "MARK NONE NONE SETITEMS", N_WORDS,
                   "STOP");
}

static void measure_keys_and_objects(void)
{
    measure_keys("keys of text", "'%d' NONE");
    measure_keys("keys of ints", "%d NONE");
    measure_keys("keys of floats", "BINFLOAT %d.5 NONE");
    measure_keys("keys of tuples", "%d TUPLE1 NONE");
    measure_keys("keys of long ints", "LONG1 0x%016d0102 NONE");
    measure_pickle("globals", "MARK", "GLOBAL torch int1", N_WORDS / 4, "TUPLE STOP");
    measure_pickle("the last global of the table", "MARK", "GLOBAL torch.cuda LongStorage",
                   N_WORDS / 4, "TUPLE STOP");
    measure_pickle("sizes", "MARK", "GLOBAL torch Size 1 TUPLE1 TUPLE1 REDUCE", N_WORDS / 4,
                   "TUPLE STOP");
    measure_pickle("tensors", "MARK", TENSOR, N_WORDS / 20, "TUPLE STOP");
    measure_pickle("storages", "MARK", FLOATS, N_WORDS / 10, "TUPLE STOP");
    measure_pickle("ordered dicts", "GLOBAL collections OrderedDict BINPUT 0 TUPLE1 MARK",
                   "BINGET 0 EMPTY_TUPLE REDUCE", N_WORDS, "TUPLE TUPLE2 STOP");
    measure_pickle("bytes of text", "MARK", "GLOBAL _codecs encode 'a' 'latin1' TUPLE2 REDUCE",
                   N_WORDS / 4, "TUPLE STOP");
    inert = true;
    measure_pickle("inert objects", "GLOBAL a b BINPUT 0 MARK", "BINGET 0 EMPTY_TUPLE NEWOBJ",
                   N_WORDS, "TUPLE TUPLE2 STOP");
    measure_pickle("inert objects with an item", "GLOBAL a b BINPUT 0 MARK",
                   "BINGET 0 EMPTY_TUPLE NEWOBJ NONE APPEND", N_WORDS, "TUPLE TUPLE2 STOP");
    measure_pickle("unknown globals", "MARK", "GLOBAL a b", N_WORDS, "TUPLE STOP");
    inert = false;
}

/* ---- directories ---- */

static void parse_directory(const cost *asked)
{
    size_t tail = asked->nbytes < BERTH_ZIP_TAIL_NBYTES ? asked->nbytes : BERTH_ZIP_TAIL_NBYTES;
    berth_zip_directory directory = {0};
    berth_zip_end end;
    berth_error error;

    berth_error_clear(&error);
    if (berth_zip_find_end(asked->bytes + asked->nbytes - tail, tail, asked->nbytes, &end, &error) <
            0 ||
        berth_zip_read_directory(asked->bytes + end.directory_offset, &end, &directory, &error) < 0)
        return;
    (void)berth_zip_find(&directory, "none", 4);
    berth_zip_free_directory(&directory);
}

/* A file of empty records, which are 30 bytes and a name; `name` makes the nth's. */
static void measure_directory(const char *what, const char *name)
{
    berth_place *places = calloc(N_RECORDS, sizeof *places);
    char(*names)[300] = calloc(N_RECORDS, sizeof *names);
    uint8_t *bytes = calloc(N_RECORDS, 1000);
    uint64_t at = 0;

    for (int i = 0; i < N_RECORDS; i++) {
        (void)snprintf(names[i], sizeof names[i], name, i);
        cr_assert_eq(berth_layout_place(at, strlen(names[i]), 0, 1, &places[i]), 0);
        berth_zip_write_local(&places[i], names[i], bytes + at);
        at = places[i].next_offset;
    }
    uint64_t directory_at = at;
    for (int i = 0; i < N_RECORDS; i++) {
        berth_zip_write_central(&places[i], names[i], 0, bytes + at);
        at += berth_layout_central_nbytes(&places[i]);
    }
    berth_zip_write_end(N_RECORDS, directory_at, at - directory_at, bytes + at);
    measure(what, bytes, at + BERTH_ZIP_END_NBYTES, parse_directory);
    free(places), free(names), free(bytes);
}

/* Every byte may begin an end record; only the last one does. */
static void measure_tail(void)
{
    size_t nbytes = BERTH_ZIP_TAIL_NBYTES;
    uint8_t *bytes = malloc(nbytes);

    for (size_t i = 0; i < nbytes; i++)
        bytes[i] = (uint8_t) "PK\5\6"[i % 4];
    measure("a tail of end records", bytes, nbytes, parse_directory);
    memset(bytes, 'P', nbytes);
    measure("a tail of beginnings", bytes, nbytes, parse_directory);
    free(bytes);
}

Test(costs, of_the_worst_inputs_are_bounded, .timeout = 300)
{
    measure_small_parts();
    measure_keys_and_objects();
    measure_directory("records", "m/%d");
    measure_directory("records with long names", "m/%0250d");
    measure_tail();
    printf("worst bytes per input byte: %.1f (%s)\n", worst.nbytes, worst.hungry);
    printf("worst nanoseconds per input byte: %.0f (%s)\n", worst.nanoseconds, worst.slow);
    printf("peak stack of the parsers: %zu bytes (%s)\n", worst.stack_nbytes, worst.deep);
}
