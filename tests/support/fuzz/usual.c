/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/fuzz/usual.h"

/* Opcodes of one, at most: a shape has a few more or less. */
#define MAX_USUAL_OPCODES 40

static bool is_there(const uint8_t *bytes, size_t nbytes, const char *text)
{
    return nbytes == strlen(text) && memcmp(bytes, text, nbytes) == 0;
}

/* What an opcode of these bytes leaves on the stack. */
static enum sort sort_of(const uint8_t *bytes, size_t nbytes)
{
    static const char function[] = "ctorch._utils\n_rebuild_tensor_v2\n";

    if (bytes[0] == 'c' && is_there(bytes, nbytes, function))
        return SORT_FUNCTION;
    if (bytes[0] == 'c' && is_there(bytes, nbytes, "ccollections\nOrderedDict\n"))
        return SORT_HOOKS;
    if (bytes[0] == 'c' && nbytes > 9 && memcmp(bytes + nbytes - 8, "Storage\n", 8) == 0)
        return SORT_CLASS;
    if (bytes[0] == 'X' && nbytes > 5)
        return is_there(bytes + 5, nbytes - 5, "storage") ? SORT_WORD
               : bytes[5] >= '0' && bytes[5] <= '9'       ? SORT_KEY
                                                          : SORT_LOCATION;
    return SORT_OTHER;
}

static uint32_t index_of(const uint8_t *bytes, size_t nbytes)
{
    return nbytes == 5 ? bth_little_u32(bytes + 1) : nbytes == 2 ? bytes[1] : 0;
}

static bool is_put(uint8_t opcode)
{
    return opcode == 'q' || opcode == 'r';
}

static bool is_get(uint8_t opcode)
{
    return opcode == 'h' || opcode == 'j';
}

static bool is_int(uint8_t opcode)
{
    return opcode == 'K' || opcode == 'M' || opcode == 'J' || opcode == 0x8a;
}

/* The last ones stay, too. */
static void note(struct memo *memo, enum sort sort, uint32_t index)
{
    size_t n = memo->n[sort] < MAX_OF_A_SORT ? memo->n[sort]++ : random_below(MAX_OF_A_SORT);

    memo->at[sort][n] = index;
    if (index < MAX_FRAGMENT_NBYTES && index >= memo->next)
        memo->next = index + 1;
}

static void find_memo(const uint8_t *bytes, const struct opcodes *found, struct memo *memo)
{
    *memo = (struct memo){.next = 0};
    for (size_t i = 1; i < found->n; i++) {
        const size_t *at = &found->at[i];
        if (is_put(bytes[at[0]]))
            note(memo, sort_of(bytes + at[-1], at[0] - at[-1]),
                 index_of(bytes + at[0], at[1] - at[0]));
    }
}

static void say_little(struct fragment *out, uint32_t number, size_t n)
{
    for (size_t i = 0; i < n; i++)
        say_byte(out, number >> 8 * i & 0xff);
}

static void say_index(struct fragment *out, const char *brief_and_wide, uint32_t index)
{
    bool is_wide = index > 0xff || random_below(8) == 0;

    say_byte(out, (uint8_t)brief_and_wide[is_wide]);
    say_little(out, index, is_wide ? 4 : 1);
}

/* In any form that holds it. */
static void say_number(struct fragment *out, int32_t number)
{
    size_t form = random_below(16), least = number < 0 || number > 0xffff ? 2 : number > 0xff;

    form = form > 3 || form < least ? least : form;
    say_bytes(out, &"KMJ\x8a"[form], 1);
    if (form == 3)
        say_byte(out, 4);
    say_little(out, (uint32_t)number, form == 0 ? 1 : form == 1 ? 2 : 4);
}

static int32_t any_number(void)
{
    static const int32_t telling[] = {0,   1,   2,   3,     4,     5,       12,        -1,       -2,
                                      127, 128, 255, 256,   257,   300,     -128,      -256,     7,
                                      6,   64,  512, 65535, 65536, 1000000, INT32_MAX, INT32_MIN};

    return telling[random_below(sizeof telling / sizeof *telling)];
}

static void say_any_index(struct fragment *out, const struct memo *memo, const char *opcodes)
{
    size_t sort = random_below(N_SORTS), n = memo->n[sort];

    say_index(out, opcodes,
              n && random_below(4) ? memo->at[sort][random_below(n)]
                                   : (uint32_t)random_below(memo->next + 2));
}

/* No key, the longest that is read at once, a longer one, no UTF-8; the word, one as long. */
static void say_any_text(struct fragment *out)
{
    static const char *const texts[] = {"",        "0",        "1",       "12345678901234567",
                                        "\xff",    "\xc3\xa9", "a",       "storage",
                                        "storagf", "cuda:12",  "1234567", "1234567890123456"};

    say_text(out, texts[random_below(sizeof texts / sizeof *texts)]);
}

/* Any opcode that a tensor is made of, and what is like one. */
static void say_part(struct fragment *out, const struct memo *memo)
{
    static const char plain[] = "(t\x85\x86\x87)\x88\x89NRQ\x81"
                                "b}]\x8f"
                                "ause0122\x94";

    switch (random_below(5)) {
    case 0:
        say_number(out, any_number());
        return;
    case 1:
        say_any_index(out, memo, "hj");
        return;
    case 2:
        say_any_index(out, memo, "qr");
        return;
    case 3:
        if (random_below(4) == 0)
            say_any_text(out);
        else
            say_number(out, any_number());
        return;
    default:
        say_bytes(out, &plain[random_below(sizeof plain - 1)], 1);
    }
}

/* Another one of its kind, which the same may follow. */
static void say_like(struct fragment *out, const struct memo *memo, uint8_t opcode)
{
    static const char tuples[] = "t\x85\x86\x87)", bools[] = "\x88\x89N";

    if (opcode == 'X')
        say_any_text(out);
    else if (is_int(opcode))
        say_number(out, any_number());
    else if (is_get(opcode))
        say_any_index(out, memo, "hj");
    else if (is_put(opcode))
        say_any_index(out, memo, "qr");
    else if (opcode == 't' || opcode == ')' || (opcode >= 0x85 && opcode <= 0x87))
        say_byte(out, (uint8_t)tuples[random_below(5)]);
    else if (opcode == 0x88 || opcode == 0x89)
        say_byte(out, (uint8_t)bools[random_below(3)]);
    else
        say_part(out, memo);
}

static void say_put(struct fragment *out, struct memo *memo, enum sort sort)
{
    uint32_t beyond = random_below(64) ? 0 : (uint32_t)random_below(300);
    uint32_t index = random_below(512) ? memo->next + beyond : (uint32_t)random_below(memo->next);

    say_index(out, "qr", index);
    note(memo, sort, index);
}

static void say_new(struct fragment *out, struct memo *memo, enum sort sort)
{
    static const char *const classes[] = {
        "FloatStorage", "LongStorage",         "ByteStorage",   "HalfStorage", "BoolStorage",
        "CharStorage",  "ComplexFloatStorage", "DoubleStorage", "IntStorage",  "ShortStorage"};
    size_t class = random_below(12);

    if (sort == SORT_FUNCTION)
        say_global(out, "torch._utils", "_rebuild_tensor_v2");
    else if (sort == SORT_HOOKS)
        say_global(out, "collections", "OrderedDict");
    else if (sort == SORT_CLASS)
        say_global(out, class < 10 ? "torch" : "torch.storage",
                   class < 10 ? classes[class] : "UntypedStorage");
    else
        say_text(out, sort == SORT_WORD ? "storage" : random_below(4) ? "cpu" : "cuda:12");
    say_put(out, memo, sort);
}

/* What is fetched, if it was ever put; now and then anything. */
static void say_known(struct fragment *out, struct memo *memo, enum sort sort)
{
    size_t n = memo->n[sort];
    uint32_t index = n ? memo->at[sort][random_below(n)] : 0;

    if (n == 0 || random_below(sort == SORT_CLASS ? 4 : 32) == 0) {
        index = memo->next;
        say_new(out, memo, sort);
    } else if (random_below(256) == 0) {
        if (memo->pending > 0 && random_below(2))
            say_index(out, "hj", memo->pending);
        else
            say_any_index(out, memo, "hj");
    } else {
        say_index(out, "hj", index);
    }
    memo->class = sort == SORT_CLASS ? index : memo->class;
}

static void say_numbers(struct fragment *out, struct memo *memo, const int32_t *numbers, size_t n)
{
    bool is_marked = n > 3 || random_below(16) == 0;

    if (is_marked)
        say(out, "(");
    for (size_t i = 0; i < n; i++)
        say_number(out, numbers[i]);
    say_bytes(out, is_marked ? "t" : &")\x85\x86\x87"[n], 1);
    if (n > 0)
        say_put(out, memo, SORT_OTHER);
}

static void say_key(struct fragment *out, struct memo *memo)
{
    char key[8];

    snprintf(key, sizeof key, "%zu", random_below(1000));
    say_text(out, key);
    memo->key = memo->next;
    say_put(out, memo, SORT_KEY);
}

/* A view of a storage of its own that just holds it, or of the last one, most of the time. */
static void say_usual(struct fragment *out, struct memo *memo)
{
    int32_t size[8], stride[8], step = 1, offset = random_below(3) ? 0 : any_number() & 0xfff;
    size_t rank = random_below(8);
    bool is_tied = memo->key > 0 && random_below(6) == 0;

    for (size_t i = rank; i-- > 0; step *= size[i]) {
        size[i] = is_tied ? 1 : 1 + (int32_t)random_below(3);
        stride[i] = step;
    }
    offset = is_tied ? 0 : offset;
    memo->numel = is_tied ? memo->numel : step + offset;
    say_known(out, memo, SORT_FUNCTION);
    say(out, "((");
    say_known(out, memo, SORT_WORD);
    if (is_tied) {
        say_index(out, "hj", memo->class);
        say_index(out, "hj", memo->key);
    } else {
        say_known(out, memo, SORT_CLASS);
        say_key(out, memo);
    }
    say_known(out, memo, SORT_LOCATION);
    say_number(out, random_below(64) ? memo->numel : any_number());
    say(out, "t");
    say_put(out, memo, SORT_OTHER);
    say(out, "Q");
    say_number(out, offset);
    say_numbers(out, memo, size, rank);
    say_numbers(out, memo, stride, random_below(96) ? rank : random_below(8));
    say(out, random_below(2) ? "\x88" : "\x89");
    say_known(out, memo, SORT_HOOKS);
    say(out, ")R");
    say_put(out, memo, SORT_OTHER);
    say(out, "t");
    say_put(out, memo, SORT_OTHER);
    say(out, "R");
}

/* A Parameter of before 0.4: nothing yet, until it is built. */
static void say_pending(struct fragment *out, struct memo *memo)
{
    say_global(out, "torch.nn.parameter", "Parameter");
    say_usual(out, memo);
    say(out, "\x88\x86R");
    memo->pending = memo->next;
    say_put(out, memo, SORT_OTHER);
}

void say_usual_list(struct fragment *out)
{
    static const char filler[] =
        "__________________________________________________________________________________________"
        "__________________________________________________________________________________________"
        "____________________";
    struct memo memo = {.next = 1};
    size_t n = 2 + random_below(4);

    say(out, "\x80\x02]q");
    say_byte(out, 0);
    say(out, "(");
    for (size_t i = 0; i < n; i++) {
        if (random_below(16) == 0)
            say_pending(out, &memo);
        say_usual(out, &memo);
        if (random_below(2))
            say_put(out, &memo, SORT_OTHER);
        if (random_below(16) == 0)
            say_any_index(out, &memo, "hj");
    }
    say_text(out, filler + (random_below(16) ? 0 : random_below(sizeof filler)));
    say(out, "e.");
}

size_t find_usual(const uint8_t *bytes, const struct opcodes *found, size_t *first)
{
    size_t n = 0;

    for (size_t i = 0; i + 3 < found->n && n < MAX_USUAL; i++)
        if (is_get(bytes[found->at[i]]) && bytes[found->at[i + 1]] == '(' &&
            bytes[found->at[i + 2]] == '(')
            first[n++] = i;
    return n;
}

/* One more than the last opcode: the second REDUCE, or as far as one may go. */
static size_t end_of_usual(const uint8_t *bytes, const struct opcodes *found, size_t first)
{
    size_t n_reduced = 0, i = first;

    while (i < found->n && i < first + MAX_USUAL_OPCODES && n_reduced < 2)
        n_reduced += bytes[found->at[i++]] == 'R';
    return i;
}

size_t mutate_usual(uint8_t *bytes, size_t nbytes, size_t most, const struct opcodes *found,
                    const size_t *firsts, size_t n)
{
    struct fragment fragment = {.nbytes = 0};
    struct memo memo;
    size_t first = firsts[random_below(n)], end = end_of_usual(bytes, found, first);
    size_t one = first + random_below(end - first), other = first + random_below(end - first);
    size_t begin = found->at[first], at = found->at[one], cut = found->at[one + 1] - at;

    find_memo(bytes, found, &memo);
    switch (random_below(16)) {
    case 0: /* instead of it */
        say_usual(&fragment, &memo);
        at = begin;
        cut = found->at[end] - begin;
        break;
    case 1: /* before it */
    case 2:
        say_usual(&fragment, &memo);
        at = begin;
        cut = 0;
        break;
    case 3: /* what it, or another one, keeps is fetched */
        say_any_index(&fragment, &memo, "hj");
        at = begin;
        cut = 0;
        break;
    case 4:
        break;
    case 5: /* once more, or the one instead of the other */
        say_bytes(&fragment, bytes + found->at[other], found->at[other + 1] - found->at[other]);
        cut = random_below(2) ? cut : 0;
        break;
    case 6:
    case 7:
    case 8:
    case 9:
        say_part(&fragment, &memo);
        cut = 0;
        break;
    case 10:
        say_part(&fragment, &memo);
        break;
    default:
        say_like(&fragment, &memo, bytes[at]);
    }
    return put_between(bytes, nbytes, most, at, cut, fragment.bytes, fragment.nbytes);
}
