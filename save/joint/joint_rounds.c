/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The rounds of an exchange: runs are sent to the owners of windows, which write them. A window is
 * written by a thread of its own, while the messages of the next round fill the other one.
 */
#include <assert.h>

#include "base/error.h"
#include "base/memory.h"
#include "io/thread_pool.h"
#include "io/trace/trace.h"
#include "save/joint/joint_exchange.h"

/* Of all messages that a writer sends in a step, and of all that it receives. More than a window,
 * so that equal shares of one need one step. */
#define MESSAGES_NBYTES ((uint64_t)9 << 20)
#define MIN_MESSAGE_NBYTES ((uint64_t)1024)
#define N_WINDOWS 2

/* A window that is being written. */
typedef struct window_writing {
    const bth_rounds_settings *settings;
    const bth_joint_window *window; /* NULL: none */
    const bth_trace_thread *traced; /* of the thread that began it; NULL: none */
    pthread_t thread;
    berth_error error; /* the thread's, until it is joined */
} window_writing;

typedef struct rounds {
    bth_exchange *exchange;
    const bth_rounds_settings *settings;
    uint64_t number; /* of the round */
    bth_joint_window windows[N_WINDOWS];
    bth_joint_window *window; /* the one that this round fills */
    window_writing writing;   /* of another one */
    size_t message_nbytes;    /* the most in a message */
    bth_region sent;
    bth_region received;
    bth_pieces_place *places; /* one a writer */
} rounds;

/* ---- begin and end ---- */

static int rounds_allocate(rounds *all, berth_error *error)
{
    bth_pages pages = {.wanted = all->settings->large_pages};
    size_t n = all->exchange->n;
    uint64_t most = bth_max(MESSAGES_NBYTES / n, MIN_MESSAGE_NBYTES);

    all->message_nbytes = (size_t)most;
    size_t nbytes = bth_array_nbytes(n, all->message_nbytes);
    all->places = bth_allocate_zeroed(bth_array_nbytes(n, sizeof *all->places));
    if (!all->places)
        return bth_fail_memory(error, bth_array_nbytes(n, sizeof *all->places));
    if (bth_region_new(nbytes, 1, false, &pages, &all->sent, error) < 0 ||
        bth_region_new(nbytes, 1, false, &pages, &all->received, error) < 0)
        return error->code;
    for (size_t i = 0; i < N_WINDOWS; i++)
        if (bth_joint_window_allocate(&all->windows[i], all->settings->ticket, &pages, error) < 0)
            return error->code;
    all->window = all->windows;
    return 0;
}

static void rounds_free_all(rounds *all)
{
    for (size_t i = 0; i < N_WINDOWS; i++)
        bth_joint_window_free_all(&all->windows[i]);
    bth_region_free(&all->sent);
    bth_region_free(&all->received);
    bth_release(all->places);
}

/* The window of a writer in this round. A file has less than 2^63 bytes, and a round at most
 * 2^44. */
static bth_range rounds_window_of(const rounds *all, uint32_t writer)
{
    return (bth_range){(all->number * all->exchange->n + writer) * BTH_WINDOW_NBYTES,
                       BTH_WINDOW_NBYTES};
}

/* The first round from this one on in whose windows a storage lies. False: there is none. */
static bool rounds_find_next(rounds *all)
{
    const bth_ticket *ticket = all->settings->ticket;
    uint64_t nbytes = all->exchange->n * BTH_WINDOW_NBYTES, begin = all->number * nbytes;

    assert(nbytes > 0); /* there is a writer */
    for (size_t i = 0; i < ticket->n_storages; i++) {
        const bth_ticket_storage *storage = &ticket->storages[i];
        if (storage->nbytes == 0 || storage->data_offset + storage->nbytes <= begin)
            continue;
        all->number = bth_max(all->number, storage->data_offset / nbytes);
        return true;
    }
    return false;
}

/* ---- writing ---- */

static void *writing_run(void *argument)
{
    window_writing *writing = argument;
    bth_trace_scope traced = {0};

    bth_thread_disable_cancel();
    bth_trace_enter_worker(&traced, writing->traced);
    (void)writing->settings->write(writing->settings->context, writing->window, &writing->error);
    bth_trace_leave_worker(&traced);
    return NULL;
}

/* Waits for it. Its own failure is the cause that the caller wants, and not that of another. */
static int writing_end(window_writing *writing, berth_error *error)
{
    if (!writing->window)
        return error->code;
    pthread_join(writing->thread, NULL);
    writing->window = NULL;
    if (writing->error.code != BERTH_OK && (error->code == BERTH_OK || error->code == BERTH_E_PEER))
        *error = writing->error;
    return error->code;
}

/* Nothing is being written. */
static int writing_begin(window_writing *writing, const bth_rounds_settings *settings,
                         const bth_joint_window *window, berth_error *error)
{
    *writing = (window_writing){.settings = settings,
                                .window = window,
                                .traced = bth_trace_is_on() ? bth_trace_current() : NULL};
    bth_error_clear(&writing->error);
    int failure = bth_thread_start(&writing->thread, writing_run, writing);
    if (failure == 0)
        return 0;
    writing->window = NULL;
    return bth_fail_system(error, failure, "the thread that writes a window cannot be started");
}

/* ---- one step ---- */

/* The writers in the order of their messages: this one, then the others. */
static uint32_t rounds_writer_at(const rounds *all, uint32_t i)
{
    const uint32_t own = all->exchange->number;

    return i == 0 ? own : i <= own ? i - 1 : i;
}

/* Puts a message for each writer. Returns this writer's state. */
static unsigned step_put_messages(rounds *all, uint64_t *runs_nbytes)
{
    const bth_rounds_settings *settings = all->settings;
    unsigned state = BTH_PEER_SILENT;
    uint8_t *out = all->sent.bytes;

    for (uint32_t i = 0; i < all->exchange->n; i++) {
        const uint32_t to = rounds_writer_at(all, i);
        size_t nbytes = bth_pieces_put(settings->ticket, settings->parts, rounds_window_of(all, to),
                                       &all->places[to], out, all->message_nbytes, runs_nbytes);
        bool has_more = bth_pieces_are_left(settings->parts, &all->places[to]);
        unsigned own = has_more ? BTH_PEER_HAS_MORE : nbytes > 0 ? BTH_PEER_SENDS : BTH_PEER_SILENT;
        all->exchange->to[to] = nbytes;
        state = own > state ? own : state;
        out += nbytes;
    }
    return state;
}

/* This writer's message to itself stays where it is. */
static int step_carry_messages(rounds *all, berth_error *error)
{
    bth_exchange *exchange = all->exchange;
    const uint32_t own = exchange->number;

    memcpy(exchange->send_nbytes, exchange->to, exchange->n * sizeof *exchange->to);
    memcpy(exchange->receive_nbytes, exchange->from, exchange->n * sizeof *exchange->from);
    exchange->send_nbytes[own] = exchange->receive_nbytes[own] = 0;
    return bth_exchange_call(exchange, all->sent.bytes + exchange->to[own], all->received.bytes,
                             error);
}

/* There is no room for such a message, so this writer must leave alone. */
static int step_check_sizes(rounds *all, berth_error *error)
{
    bth_exchange *exchange = all->exchange;

    for (uint32_t i = 0; i < exchange->n; i++)
        if (exchange->from[i] > all->message_nbytes) {
            exchange->is_over = true;
            return bth_fail_argument(error,
                                     "writer %u announces a message of %llu bytes, the most is %zu",
                                     i, (unsigned long long)exchange->from[i], all->message_nbytes);
        }
    return 0;
}

static int step_take_messages(rounds *all, berth_error *error)
{
    const uint32_t own = all->exchange->number;
    const uint8_t *received = all->received.bytes;

    for (uint32_t i = 0; i < all->exchange->n; i++) {
        size_t nbytes = (size_t)(i == own ? all->exchange->to : all->exchange->from)[i];
        const uint8_t *message = i == own ? all->sent.bytes : received;
        if (bth_joint_window_take(all->window, i, message, nbytes, error) < 0)
            return error->code;
        received += i == own ? 0 : nbytes;
    }
    return 0;
}

/* *has_more: of any writer, in this round. */
static int rounds_step(rounds *all, bool *has_more, berth_error *error)
{
    const bth_rounds_settings *settings = all->settings;
    uint64_t runs_nbytes = 0;
    unsigned state = step_put_messages(all, &runs_nbytes), most;

    if (bth_exchange_tell(all->exchange, state, &most, error) < 0 ||
        step_check_sizes(all, error) < 0)
        return error->code;
    *has_more = most == BTH_PEER_HAS_MORE;
    if (most == BTH_PEER_SILENT)
        return 0;
    if (step_carry_messages(all, error) < 0 || step_take_messages(all, error) < 0)
        return error->code;
    return runs_nbytes > 0 ? settings->report(settings->context, runs_nbytes, error) : 0;
}

/* ---- rounds ---- */

/* The error of the last window's write is known, and told to the others, one round later. */
static int rounds_run_one(rounds *all, berth_error *error)
{
    const bth_exchange *exchange = all->exchange;
    bool has_more = true;

    bth_joint_window_move(all->window, rounds_window_of(all, exchange->number));
    memset(all->places, 0, exchange->n * sizeof *all->places);
    while (has_more)
        if (rounds_step(all, &has_more, error) < 0)
            return error->code;
    if (!all->window->has_any)
        return 0;
    if (writing_end(&all->writing, error) < 0 ||
        writing_begin(&all->writing, all->settings, all->window, error) < 0)
        return error->code;
    all->window = all->window == all->windows ? all->windows + 1 : all->windows;
    return 0;
}

int bth_exchange_run_rounds(bth_exchange *exchange, const bth_rounds_settings *settings,
                            berth_error *error)
{
    rounds all = {.exchange = exchange, .settings = settings};

    (void)rounds_allocate(&all, error);
    for (; error->code == BERTH_OK && rounds_find_next(&all); all.number++)
        (void)rounds_run_one(&all, error);
    (void)writing_end(&all.writing, error);
    rounds_free_all(&all);
    return error->code;
}
