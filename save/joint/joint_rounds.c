/* SPDX-License-Identifier: BSD-3-Clause */
/* The rounds of an exchange: runs are sent to the owners of windows, which write them. */
#include <assert.h>

#include "config/error.h"
#include "config/memory.h"
#include "save/joint/joint_exchange.h"

/* Of all messages that a writer sends in a step, and of all that it receives. More than a window,
 * so that equal shares of one need one step. */
#define MESSAGES_NBYTES ((uint64_t)18 << 20)
#define MIN_MESSAGE_NBYTES ((uint64_t)1024)

typedef struct rounds {
    bth_exchange *exchange;
    const bth_rounds_settings *settings;
    uint64_t number; /* of the round */
    bth_joint_window window;
    size_t message_nbytes; /* the most in a message */
    uint8_t *sent;
    uint8_t *received;
    bth_pieces_place *places; /* one a writer */
} rounds;

/* ---- begin and end ---- */

static int rounds_allocate(rounds *all, berth_error *error)
{
    size_t n = all->exchange->n;
    uint64_t most = bth_max(MESSAGES_NBYTES / n, MIN_MESSAGE_NBYTES);

    all->message_nbytes = (size_t)most;
    size_t nbytes = bth_array_nbytes(n, all->message_nbytes);
    all->sent = bth_allocate(nbytes);
    all->received = bth_allocate(nbytes);
    all->places = bth_allocate_zeroed(bth_array_nbytes(n, sizeof *all->places));
    if (!all->sent || !all->received || !all->places)
        return bth_fail_memory(error, nbytes);
    return bth_joint_window_allocate(&all->window, all->settings->ticket, error);
}

static void rounds_free_all(rounds *all)
{
    bth_joint_window_free_all(&all->window);
    bth_release(all->sent);
    bth_release(all->received);
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

/* ---- one step ---- */

/* Puts a message for each writer. Returns this writer's state. */
static unsigned step_put_messages(rounds *all, uint64_t *runs_nbytes)
{
    const bth_rounds_settings *settings = all->settings;
    unsigned state = BTH_PEER_SILENT;
    uint8_t *out = all->sent;

    for (uint32_t i = 0; i < all->exchange->n; i++) {
        size_t nbytes = bth_pieces_put(settings->ticket, settings->parts, rounds_window_of(all, i),
                                       &all->places[i], out, all->message_nbytes, runs_nbytes);
        bool has_more = bth_pieces_are_left(settings->parts, &all->places[i]);
        unsigned own = has_more ? BTH_PEER_HAS_MORE : nbytes > 0 ? BTH_PEER_SENDS : BTH_PEER_SILENT;
        all->exchange->to[i] = nbytes;
        state = own > state ? own : state;
        out += nbytes;
    }
    return state;
}

static int step_carry_messages(rounds *all, berth_error *error)
{
    bth_exchange *exchange = all->exchange;

    for (uint32_t i = 0; i < exchange->n; i++) {
        exchange->send_nbytes[i] = exchange->to[i];
        exchange->receive_nbytes[i] = exchange->from[i];
    }
    return bth_exchange_call(exchange, all->sent, all->received, error);
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
    const uint8_t *message = all->received;

    for (uint32_t i = 0; i < all->exchange->n; i++) {
        size_t nbytes = (size_t)all->exchange->from[i];
        if (bth_joint_window_take(&all->window, i, message, nbytes, error) < 0)
            return error->code;
        message += nbytes;
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

static int rounds_run_one(rounds *all, berth_error *error)
{
    const bth_exchange *exchange = all->exchange;
    bool has_more = true;

    bth_joint_window_move(&all->window, rounds_window_of(all, exchange->number));
    memset(all->places, 0, exchange->n * sizeof *all->places);
    while (has_more)
        if (rounds_step(all, &has_more, error) < 0)
            return error->code;
    if (!all->window.has_any)
        return 0;
    return all->settings->write(all->settings->context, &all->window, error);
}

int bth_exchange_run_rounds(bth_exchange *exchange, const bth_rounds_settings *settings,
                            berth_error *error)
{
    rounds all = {.exchange = exchange, .settings = settings};

    (void)rounds_allocate(&all, error);
    for (; error->code == BERTH_OK && rounds_find_next(&all); all.number++)
        (void)rounds_run_one(&all, error);
    rounds_free_all(&all);
    return error->code;
}
