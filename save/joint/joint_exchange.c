/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/joint/joint_exchange.h"

#include "base/error.h"
#include "base/memory.h"

/* A word: u8 state, u24 number of the sender, u32 value. */
#define WORD_NBYTES 8
#define N_TABLES 6

int bth_exchange_allocate(bth_exchange *exchange, berth_error *error)
{
    size_t n = exchange->n, nbytes = bth_array_nbytes(n, N_TABLES * sizeof *exchange->to);
    uint64_t *tables = bth_allocate_zeroed(nbytes);

    if (!tables)
        return bth_fail_memory(error, nbytes);
    exchange->to = tables;
    exchange->from = tables + n;
    exchange->send_nbytes = tables + 2 * n;
    exchange->receive_nbytes = tables + 3 * n;
    exchange->sent_words = tables + 4 * n;
    exchange->received_words = tables + 5 * n;
    return 0;
}

void bth_exchange_free_all(bth_exchange *exchange)
{
    bth_release(exchange->to);
}

int bth_exchange_call(bth_exchange *exchange, const void *send, void *receive, berth_error *error)
{
    int failure = exchange->function(exchange->context, send, exchange->send_nbytes, receive,
                                     exchange->receive_nbytes);

    if (failure == 0)
        return 0;
    exchange->is_over = true;
    if (error->code == BERTH_OK) {
        (void)bth_fail_system(error, failure < 0 ? -failure : failure, "the exchange has failed");
        error->code = BERTH_E_CALLBACK;
    }
    return error->code;
}

/* J8: each writer has the same words, so all find the same. */
int bth_exchange_tell(bth_exchange *exchange, unsigned state, unsigned *most, berth_error *error)
{
    bool is_over = false;

    if (error->code != BERTH_OK)
        state = BTH_PEER_FAILED - (unsigned)error->code;
    for (uint32_t i = 0; i < exchange->n; i++) {
        uint64_t word = state | (uint64_t)exchange->number << 8 | exchange->to[i] << 32;
        (void)bth_put_u64((uint8_t *)&exchange->sent_words[i], word);
        exchange->send_nbytes[i] = exchange->receive_nbytes[i] = WORD_NBYTES;
    }
    if (bth_exchange_call(exchange, exchange->sent_words, exchange->received_words, error) < 0)
        return error->code;
    if (most)
        *most = BTH_PEER_SILENT;
    for (uint32_t i = 0; i < exchange->n; i++) {
        bth_cursor cursor =
            bth_cursor_make((const uint8_t *)&exchange->received_words[i], WORD_NBYTES);
        uint64_t word = bth_cursor_u64(&cursor);
        unsigned told = word & 255;
        uint32_t number = word >> 8 & 0xffffff;
        exchange->from[i] = word >> 32;
        if (most && told > *most)
            *most = told;
        if (number != i)
            (void)bth_fail_argument(error, "the exchange gives bytes of writer %u as those of %u",
                                    number, i);
        else if (told > BTH_PEER_HAS_MORE)
            (void)bth_fail_status(error, BERTH_E_PEER, "writer %u has failed with %s, and says why",
                                  i, berth_status_name(BTH_PEER_FAILED - (int)told));
        is_over |= number != i || told > BTH_PEER_HAS_MORE;
    }
    exchange->is_over |= is_over;
    return error->code;
}

int bth_exchange_begin(bth_exchange *exchange, const bth_ticket *ticket, bool wants, bool *any,
                       berth_error *error)
{
    bth_cursor end =
        bth_cursor_make(ticket->bytes + ticket->nbytes - BTH_BLOB_END_NBYTES, BTH_BLOB_END_NBYTES);
    uint32_t crc32 = bth_cursor_u32(&end);
    unsigned most;

    for (uint32_t i = 0; i < exchange->n; i++)
        exchange->to[i] = crc32;
    if (bth_exchange_tell(exchange, wants ? BTH_PEER_HAS_MORE : BTH_PEER_SILENT, &most, error) < 0)
        return error->code;
    for (uint32_t i = 0; i < exchange->n; i++)
        if (exchange->from[i] != crc32) {
            exchange->is_over = true; /* in all: each finds another one */
            return bth_fail_argument(error, "writer %u has the ticket of another save", i);
        }
    *any = most == BTH_PEER_HAS_MORE;
    return 0;
}
