/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/fuzz/pickles.h"
#include "tests/support/support.h"

struct callable {
    const char *module, *name, *wanted, *optional;
};

static const struct callable callables[] = {
#define BTH_CALLABLE(module, name, build, wanted, optional) {module, name, wanted, optional},
#include "format/pickle/pickle_globals.def"
};
#include "format/pickle/pickle_globals.def"

/* Of one key always the same class and size (T3), most of the time. */
static void say_storage(struct fragment *out)
{
    static const char *const classes[] = {"FloatStorage",        "LongStorage",   "ByteStorage",
                                          "ComplexFloatStorage", "QUInt8Storage", "UntypedStorage"};
    static const char *const keys[] = {"0", "1", "2", "3", "4", "5"};
    static const uint8_t sizes[] = {12, 4, 64, 5, 16, 0};
    size_t i = random_below(6), k = random_below(16) ? i : random_below(6);

    say(out, "(");
    say_text(out, "storage");
    say_global(out, i == 5 ? "torch.storage" : "torch", classes[i]);
    say_text(out, keys[k]);
    say_text(out, random_below(8) ? "cpu" : "cuda:0");
    say_int(out, random_below(16) ? sizes[i] : random_below(256));
    say(out, "tQ");
}

static void say_shape(struct fragment *out)
{
    size_t rank = random_below(4);

    for (size_t i = 0; i < rank; i++)
        say_int(out, random_below(8) ? 1 + random_below(4) : random_below(256));
    say_bytes(out, &")\x85\x86\x87"[rank], 1);
}

static void say_hooks(struct fragment *out)
{
    say_global(out, "collections", "OrderedDict");
    say(out, ")R");
}

void say_tensor(struct fragment *out)
{
    static const char *const shapes[] = {"K\2K\3\x86K\3K\1\x86", "K\4\x85K\1\x85", "))",
                                         "K\2K\2\x86K\1K\2\x86", "K\7K\7\x86K\0K\0\x86"};
    static const size_t n[] = {10, 6, 2, 10, 10};
    size_t i = random_below(5);

    say_global(out, "torch._utils", "_rebuild_tensor_v2");
    say(out, "(");
    say_storage(out);
    say_int(out, random_below(4) ? 0 : random_below(8));
    say_bytes(out, shapes[i], n[i]);
    say(out, random_below(2) ? "\x88" : "\x89");
    say_hooks(out);
    say(out, "tR");
}

static void say_quantizer(struct fragment *out)
{
    static const uint8_t half[] = {'G', 0x3f, 0xe0, 0, 0, 0, 0, 0, 0};

    say(out, "(");
    if (random_below(2)) {
        say_global(out, "torch", "per_tensor_affine");
        say_bytes(out, half, sizeof half);
        say_int(out, random_below(8));
    } else {
        say_global(out, "torch", "per_channel_affine");
        say_tensor(out);
        say_tensor(out);
        say_int(out, random_below(3));
    }
    say(out, "t");
}

static void say_tuple(struct fragment *out)
{
    switch (random_below(4)) {
    case 0:
        say(out, ")");
        break;
    case 1:
        say_quantizer(out);
        break;
    case 2:
        say_tensor(out);
        say_tensor(out);
        say_shape(out);
        say(out, "\x87");
        break;
    default:
        say_shape(out);
    }
}

static void say_layout(struct fragment *out)
{
    static const char *const layouts[] = {"torch.sparse_coo", "torch.sparse_csr",
                                          "torch.sparse_bsc", "torch.strided", "torch.nothing"};

    say_global(out, "torch.serialization", "_get_layout");
    say_text(out, layouts[random_below(5)]);
    say(out, "\x85R");
}

static void say_word(struct fragment *out)
{
    static const char *const words[] = {"a", "latin1", "cuda:1", "torch.strided", "", "0", "w.b"};

    say_text(out, words[random_below(7)]);
}

/* An argument of the form that a letter of pickle_globals.def stands for. */
static void say_argument(struct fragment *out, char letter)
{
    static const uint8_t real[] = {'G', 0x3f, 0xf8, 0, 0, 0, 0, 0, 0};
    static const char *const plain[] = {"N", "}", "]", "\x88", "\x89", "K\1", ")"};

    switch (letter) {
    case 'S':
        say_storage(out);
        return;
    case 'i':
        say_int(out, random_below(4));
        return;
    case 'h':
        say_shape(out);
        return;
    case 'f':
        say_bytes(out, real, sizeof real);
        return;
    case 'D':
        say_global(out, "torch", random_below(2) ? "float32" : "uint16");
        return;
    case 'o':
        say_hooks(out);
        return;
    case 's':
    case 'Y':
        say_word(out);
        return;
    case 'u':
        say_tuple(out);
        return;
    case 'L':
        say_layout(out);
        return;
    case 't':
    case 'T':
        say_tensor(out);
        return;
    default: /* b m l d * */
        say(out, plain[letter == 'b'   ? 3 + random_below(2)
                       : letter == 'l' ? 2
                       : letter == 'd' ? 1
                       : letter == 'm' ? random_below(2)
                                       : random_below(7)]);
    }
}

/* A call with the arguments it wants. */
static void say_call(struct fragment *out)
{
    const struct callable *one = &callables[random_below(sizeof callables / sizeof *callables)];

    say_global(out, one->module, one->name);
    say(out, "(");
    for (const char *letter = one->wanted; *letter; letter++)
        say_argument(out, *letter);
    if (random_below(2))
        for (const char *letter = one->optional; *letter; letter++)
            say_argument(out, *letter);
    say(out, "tR");
}

void say_anything(struct fragment *out)
{
    static const char letters[] = "SihbfDomsYlduLtT*";
    size_t opcode;

    switch (random_below(6)) {
    case 0:
        do
            opcode = random_below(256);
        while (!bth_opcodes[opcode].name || !bth_opcodes[opcode].allowed);
        say_byte(out, opcode);
        if (bth_opcodes[opcode].form != BTH_FORM_NOTHING)
            say_byte(out, random_below(4));
        return;
    case 1: /* kept, and fetched again */
        opcode = random_below(8);
        say(out, "q");
        say_byte(out, opcode);
        say(out, "h");
        say_byte(out, opcode);
        return;
    case 2:
        say_argument(out, letters[random_below(sizeof letters - 1)]);
        return;
    case 3: /* an item: of a list, of a dict, attributes */
        say_word(out);
        say_argument(out, '*');
        say(out, random_below(2) ? "s"
                                 : "\x86"
                                   "a");
        return;
    case 4:
        say(out, "}");
        say_word(out);
        say_call(out);
        say(out, random_below(2) ? "sb" : "s");
        return;
    default:
        say_call(out);
    }
}

/* A run of opcodes once more, or many times: what nests, doubles or repeats. */
static size_t repeat_run(uint8_t *bytes, size_t nbytes, size_t most, size_t begin, size_t end,
                         size_t at)
{
    uint8_t run[MAX_FRAGMENT_NBYTES];
    size_t times = random_below(4) ? 1 : 1 + random_below(200), n = end - begin;

    if (n > sizeof run)
        return nbytes;
    memcpy(run, bytes + begin, n);
    while (times-- > 0)
        nbytes = put_between(bytes, nbytes, most, at, 0, run, n);
    return nbytes;
}

/* The bytes of an opcode's argument, in place. */
static size_t change_argument(uint8_t *bytes, size_t nbytes, size_t begin, size_t end)
{
    static const uint8_t telling[] = {0, 1, 2, 0x7f, 0x80, 0xff};

    if (end - begin > 1)
        bytes[begin + 1 + random_below(end - begin - 1)] =
            random_below(2) ? telling[random_below(sizeof telling)] : (uint8_t)random_below(256);
    return nbytes;
}

/* A call in a dict. */
static void say_called(struct fragment *out)
{
    say(out, "\x80\x02}");
    say_word(out);
    say_call(out);
    say(out, "s.");
}

/* Any run of opcodes, or what can be built, anywhere. */
static size_t mutate_opcodes(uint8_t *bytes, size_t nbytes, size_t most,
                             const struct opcodes *found)
{
    struct fragment fragment = {.nbytes = 0};
    size_t first = random_below(found->n), length = 1 + random_below(random_below(3) ? 3 : 20);
    size_t last = first + length < found->n ? first + length : found->n;
    size_t begin = found->at[first], end = found->at[last], at = found->at[random_below(found->n)];

    say_anything(&fragment);
    switch (random_below(6)) {
    case 0:
        return put_between(bytes, nbytes, most, begin, end - begin, NULL, 0);
    case 1:
        return repeat_run(bytes, nbytes, most, begin, end, at);
    case 2:
        return change_argument(bytes, nbytes, begin, found->at[first + 1]);
    case 3:
        return put_between(bytes, nbytes, most, begin, end - begin, fragment.bytes,
                           fragment.nbytes);
    default:
        return put_between(bytes, nbytes, most, at, 0, fragment.bytes, fragment.nbytes);
    }
}

static size_t change_pickle(uint8_t *bytes, size_t nbytes, size_t most)
{
    static struct opcodes found;
    size_t firsts[MAX_USUAL];

    find_opcodes(bytes, nbytes, &found);
    size_t n_usual = find_usual(bytes, &found, firsts);
    if (n_usual > 0 && random_below(n_usual > 1 ? 4 : 2))
        return mutate_usual(bytes, nbytes, most, &found, firsts, n_usual);
    if (found.n < 2 || random_below(12) == 0)
        return LLVMFuzzerMutate(bytes, nbytes, most);
    return mutate_opcodes(bytes, nbytes, most, &found);
}

size_t mutate_pickle(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    struct fragment fragment = {.nbytes = 0};

    (void)number;
    if (random_below(3) > 0)
        return change_pickle(bytes, nbytes, most);
    if (random_below(4))
        say_usual_list(&fragment);
    else
        say_called(&fragment);
    nbytes = put_between(bytes, nbytes, most, 0, nbytes, fragment.bytes, fragment.nbytes);
    for (size_t n = random_below(2) + random_below(2); n > 0; n--)
        nbytes = change_pickle(bytes, nbytes, most);
    return nbytes;
}

void seed_written(void)
{
    static const float elements[6] = {0, 1, 2, 3, 4, 5};
    static const int64_t shape[] = {2, 3};
    count_memory_from_now(); /* what is allocated now is freed by the same allocator */
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT),
                *list = berth_make_list(tree);
    berth_value *pair[2] = {berth_make_int(tree, 300), berth_make_str(tree, "k", 1)};
    bth_pickled pickled;
    berth_error error = {0};

    berth_value *tensor = test_tensor(tree, BERTH_FLOAT32, elements, 2, shape);
    berth_dict_set(root, "weight", berth_make_parameter(tree, tensor, true));
    berth_dict_set_value(root, berth_make_tuple(tree, pair, 2), list);
    berth_list_append(list, tensor);
    berth_list_append(list, berth_make_bytes(tree, BERTH_KIND_BYTES, "\xff\x00\x01", 3));
    berth_list_append(list, berth_make_complex(tree, 1, -2));
    berth_list_append(list, berth_make_size(tree, shape, 2));
    berth_list_append(list, berth_make_device(tree, "cuda", 1));
    berth_value_set_state(root, berth_make_dict(tree, BERTH_KIND_DICT));
    MUST(bth_pickle_write(root, false, &pickled, &error) == 0, "%s", error.message);
    seed("written", pickled.bytes, pickled.nbytes);
    bth_pickled_free(&pickled);
    berth_tree_free(tree);
}

/* Tensors that are read at once, from the second of a class on: as many bytes as that takes follow.
 */
static void seed_usual_of(const char *name, const berth_dtype *dtypes, size_t n_dtypes)
{
    static const int64_t elements[6], shape[] = {2, 1, 1, 3};
    static const char text[BTH_USUAL_NBYTES];

    count_memory_from_now();
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_list(tree);
    bth_pickled pickled;
    berth_error error = {0};

    for (size_t i = 0; i < 8; i++)
        berth_list_append(
            root, test_tensor(tree, dtypes[i % n_dtypes], elements, (int32_t)(i % 5), shape));
    berth_list_append(root, berth_make_str(tree, text, sizeof text));
    MUST(bth_pickle_write(root, false, &pickled, &error) == 0, "%s", error.message);
    seed(name, pickled.bytes, pickled.nbytes);
    bth_pickled_free(&pickled);
    berth_tree_free(tree);
}

void seed_usual(void)
{
    static const berth_dtype dtypes[] = {BERTH_FLOAT32, BERTH_INT64,    BERTH_UINT8,
                                         BERTH_BOOL,    BERTH_BFLOAT16, BERTH_UINT16};

    seed_usual_of("usual", dtypes, 1);
    seed_usual_of("usual-classes", dtypes, sizeof dtypes / sizeof *dtypes);
}

void seed_calls(void)
{
    for (unsigned i = 0; i < 120; i++) {
        struct fragment fragment = {.nbytes = 0};
        char name[32];

        random_begin(i);
        say_called(&fragment);
        snprintf(name, sizeof name, "call-%u", i);
        seed(name, fragment.bytes, fragment.nbytes);
    }
}

/* n times the same opcodes between a beginning and an end. */
static void seed_repeated(const char *name, const void *begin, size_t begin_nbytes,
                          const void *opcodes, size_t opcodes_nbytes, size_t n, const char *end)
{
    size_t nbytes = begin_nbytes;
    uint8_t *bytes = malloc(begin_nbytes + n * opcodes_nbytes + strlen(end));

    memcpy(bytes, begin, begin_nbytes);
    for (size_t i = 0; i < n; i++, nbytes += opcodes_nbytes)
        memcpy(bytes + nbytes, opcodes, opcodes_nbytes);
    memcpy(bytes + nbytes, end, strlen(end));
    seed(name, bytes, nbytes + strlen(end));
    free(bytes);
}

void seed_bombs(size_t depth)
{
    seed_repeated("doubling", "\x80\x02K\x01", 4, "q\x00h\x00\x86", 5, 30, ".");
    seed_repeated("doubling-key", "\x80\x02}K\x01", 5, "q\x00h\x00\x86", 5, 30, "K\x01s.");
    seed_repeated("deep", "\x80\x02)", 3, "\x85", 1, depth, ".");
    seed_repeated("deep-lists", "\x80\x02]", 3, "]q\x00h\x00\x61", 6, 1, "a.");
    seed_repeated("in-itself", "\x80\x02]q\x00", 5, "h\x00\x61", 3, 3, ".");
    seed_repeated("under-itself", "\x80\x02}q\x00", 5, "K\x01h\x00s", 5, 3, ".");
}
