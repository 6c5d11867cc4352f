/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * J8: a peer in an exchange that lies. Whatever it sends, the writer that gets it refuses it by a
 * sentence, tells the others, and does not leave its window.
 */
#include <errno.h>
#include <unistd.h>

#include "io/syscalls.h"
#include "save/joint/joint_writer.h"
#include "tests/support/save/records.h"
#include "tests/support/scene.h"
#include "tests/support/writer_group.h"

enum { SIDE = 512, N_WRITERS = 2 };

static berth_error error;
static float w[SIDE * SIDE];
static berth_tree *tree;
static berth_joint *joint;
static berth_joint_info info;
static writer_group group;

static void set_up(void)
{
    const int64_t shape[] = {SIDE, SIDE};

    begin_model_scene();
    test_write_file(path, "old", 3);
    patch("save.durability=none save.byteorder=big"); /* so that elements are swapped */
    tree = berth_tree_new(NULL);
    berth_value *outline = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set(outline, "w", test_tensor(tree, BERTH_FLOAT32, BERTH_ELSEWHERE, 2, shape));
    assert_ok(berth_joint_begin(path, outline, N_WRITERS, NULL, &joint, &info, &error));
}

static void tear_down(void)
{
    berth_joint_abort(joint);
    berth_tree_free(tree);
    cr_assert(test_file_holds(path, "old", 3));
    cr_assert_eq(test_folder_count(folder), 1);
    end_scene();
}

TestSuite(joint_exchange_save, .init = set_up, .fini = tear_down);

/* ---- an honest writer, number 0, and a liar ---- */

typedef struct peer_lie {
    const char *what;
    const char *sentence;
    struct {
        uint32_t storage;
        uint64_t at;
        uint32_t nbytes, stride, count;
    } pieces[2];
    size_t cut_nbytes;         /* from the end of the message */
    uint32_t number;           /* that it says it has; 0: its own, 1 */
    uint32_t announced_nbytes; /* 0: those of the message */
} peer_lie;

static const peer_lie *told;
static berth_error found;
static unsigned end_state; /* what the honest one says of itself in the end; 255: nothing */

static void write_honestly(group_seat *seat)
{
    const int64_t starts[] = {0, 0}, lengths[] = {SIDE, 7};
    const berth_slice slice = berth_slice_of("w", starts, lengths, w);
    const berth_params params = {.exchange = group_exchange, .exchange_context = seat};
    void *receipt;
    size_t nbytes;

    int status = berth_joint_write(info.ticket, info.ticket_nbytes, 0, &slice, 1, &params, &receipt,
                                   &nbytes, &found);
    cr_assert_eq(status, (int)found.code);
    berth_free(receipt);
    group_break(seat->group); /* it does not come again */
}

static size_t put_lie(uint8_t *out)
{
    uint8_t *begin = out;

    for (size_t i = 0; i < 2 && told->pieces[i].at != 1; i++) {
        out = bth_put_u32(out, told->pieces[i].storage);
        out = bth_put_u64(out, told->pieces[i].at);
        out = bth_put_u32(out, told->pieces[i].nbytes);
        out = bth_put_u32(out, told->pieces[i].stride);
        out = bth_put_u32(out, told->pieces[i].count);
        size_t nbytes = (size_t)told->pieces[i].nbytes * told->pieces[i].count;
        nbytes = nbytes < 4096 ? nbytes : 4096;
        memset(out, 5, nbytes);
        out += nbytes;
    }
    return (size_t)(out - begin) - told->cut_nbytes;
}

/* Sends a word to each, and its state; returns the state of the honest one. */
static unsigned say(group_seat *seat, unsigned state, uint32_t value)
{
    static const uint64_t sizes[] = {8, 8};
    uint64_t word = state | (uint64_t)(told->number ? told->number : 1) << 8;
    uint64_t words[] = {word | (uint64_t)value << 32, word}, heard[2];

    if (state == BTH_PEER_HAS_MORE) /* hello */
        words[1] = words[0];
    return group_exchange(seat, words, sizes, heard, sizes) == 0 ? heard[0] & 255 : 255;
}

static void lie_to(group_seat *seat)
{
    static uint8_t message[20000], received[1 << 20];
    size_t nbytes = put_lie(message);
    bth_cursor end = bth_cursor_make((const uint8_t *)info.ticket + info.ticket_nbytes - 4, 4);
    uint64_t sent[] = {nbytes, 0}, none[] = {0, 0};

    end_state = 255;
    if (say(seat, BTH_PEER_HAS_MORE, bth_cursor_u32(&end)) == 255)
        return;
    /* The honest one owns the only window: it sends nothing. */
    uint32_t announced = told->announced_nbytes ? told->announced_nbytes : (uint32_t)nbytes;
    if (say(seat, BTH_PEER_SENDS, announced) != BTH_PEER_SILENT ||
        group_exchange(seat, message, sent, received, none) != 0)
        return;
    end_state = say(seat, BTH_PEER_SILENT, 0);
}

static void write_or_lie(group_seat *seat)
{
    (seat->number == 0 ? write_honestly : lie_to)(seat);
}

#define OWN_NBYTES ((uint64_t)SIDE * SIDE * 4)
#define END                                                                                        \
    {                                                                                              \
        0, 1, 0, 0, 0                                                                              \
    }

static const peer_lie lies[] = {
    {"no storage", "there is no such storage", {{1, 0, 8, 8, 1}, END}, 0, 0, 0},
    {"storage", "there is no such storage", {{UINT32_MAX, 0, 8, 8, 1}, END}, 0, 0, 0},
    {"no runs", "it is empty", {{0, 64, 8, 8, 0}, END}, 0, 0, 0},
    {"no bytes", "it is empty", {{0, 64, 0, 0, 8}, END}, 0, 0, 0},
    {"stride", "its runs overlap", {{0, 64, 8, 4, 2}, END}, 0, 0, 0},
    {"stride 0", "its runs overlap", {{0, 64, 8, 0, 2}, END}, 0, 0, 0},
    {"behind", "it is not in its storage, or", {{0, OWN_NBYTES, 4, 4, 1}, END}, 0, 0, 0},
    {"far", "it is not in its storage, or", {{0, UINT64_MAX - 3, 4, 4, 1}, END}, 0, 0, 0},
    {"end", "it is not in its storage, or", {{0, OWN_NBYTES - 4, 8, 8, 1}, END}, 0, 0, 0},
    {"last run", "it is not in its storage", {{0, 64, 4, 1 << 19, 3}, END}, 0, 0, 0},
    {"huge",
     "it is not in its storage, or",
     {{0, 64, UINT32_MAX, UINT32_MAX, UINT32_MAX}, END},
     0,
     0,
     0},
    {"wraps", "it is not in its storage, or", {{0, 64, 4, UINT32_MAX - 3, 2}, END}, 0, 0, 0},
    {"cut element", "it cuts an element that is swapped", {{0, 62, 4, 4, 1}, END}, 0, 0, 0},
    {"cut length", "it cuts an element that is swapped", {{0, 64, 6, 8, 2}, END}, 0, 0, 0},
    {"cut stride", "it cuts an element that is swapped", {{0, 64, 4, 6, 2}, END}, 0, 0, 0},
    {"bytes", "its bytes are cut", {{0, 64, 8, 8, 3}, END}, 1, 0, 0},
    {"too many", "its bytes are cut", {{0, 64, 8, 8, 1000}, END}, 0, 0, 0},
    {"head", "it is cut", {{0, 64, 8, 8, 3}, END}, 25, 0, 0},
    {"second", "it is empty", {{0, 64, 8, 8, 3}, {0, 640, 8, 8, 0}}, 0, 0, 0},
};

static void check_told(const char *sentence)
{
    group_run(&group, N_WRITERS, write_or_lie, &group, 0);
    cr_assert_eq(found.code, BERTH_E_ARGUMENT, "%s: %s", told->what, found.message);
    cr_assert(strstr(found.message, sentence), "%s: %s", told->what, found.message);
}

Test(joint_exchange_save, a_message_that_lies)
{
    char sentence[200];

    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        told = &lies[i];
        snprintf(sentence, sizeof sentence,
                 "model.pt: the message of writer 1: a piece is invalid: %s", told->sentence);
        check_told(sentence);
        cr_assert_eq(end_state, BTH_PEER_FAILED - BERTH_E_ARGUMENT, "%s", told->what);
    }
}

Test(joint_exchange_save, bytes_that_both_have)
{
    static const peer_lie twice[] = {
        {"the other's",
         "w: writer 1 has byte 2048 of its storage, and so has another slice",
         {{0, 2048, 4, 4, 1}, END},
         0,
         0,
         0},
        {"its last",
         "w: writer 1 has byte 2072 of its storage, and so",
         {{0, 2072, 40, 40, 1}, END},
         0,
         0,
         0},
        {"a run",
         "w: writer 1 has byte 4112 of its storage, and so",
         {{0, 2076, 4, 2036, 3}, END},
         0,
         0,
         0},
        {"its own",
         "w: writer 1 has byte 400 of its storage, and so",
         {{0, 400, 8, 8, 1}, {0, 320, 4, 80, 2}},
         0,
         0,
         0},
    };

    for (size_t i = 0; i < sizeof twice / sizeof *twice; i++) {
        told = &twice[i];
        check_told(told->sentence);
        cr_assert_eq(end_state, BTH_PEER_FAILED - BERTH_E_ARGUMENT, "%s", told->what);
    }
}

Test(joint_exchange_save, words_that_lie)
{
    static const peer_lie words[] = {
        {"number",
         "model.pt: the exchange gives bytes of writer 7 as those of 1",
         {END, END},
         0,
         7,
         0},
        {"size",
         "model.pt: writer 1 announces a message of 4294967295 bytes, the most is 4718592",
         {END, END},
         0,
         0,
         UINT32_MAX},
    };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        told = &words[i];
        check_told(told->sentence);
        cr_assert_eq(end_state, 255, "%s", told->what);
    }
}
