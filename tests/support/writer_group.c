/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/writer_group.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { PATIENCE_SECONDS = 20 };

void group_break(writer_group *group)
{
    pthread_mutex_lock(&group->lock);
    group->is_broken = true;
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
}

/* Until all are there. False: the group is broken, or somebody does not come. */
static bool group_meet(writer_group *group)
{
    struct timespec until;
    int waited = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_SECONDS;
    pthread_mutex_lock(&group->lock);
    unsigned turn = group->turn;
    if (!group->is_broken && ++group->n_waiting == group->n) {
        group->n_waiting = 0;
        group->turn++;
        pthread_cond_broadcast(&group->changed);
    }
    while (turn == group->turn && !group->is_broken && waited == 0)
        waited = pthread_cond_timedwait(&group->changed, &group->lock, &until);
    bool is_met = turn != group->turn;
    group->is_broken |= !is_met;
    pthread_mutex_unlock(&group->lock);
    return is_met;
}

/* What writer `from` sends to `to`. */
static void group_receive(writer_group *group, size_t from, size_t to, uint8_t *out,
                          uint64_t expected_nbytes)
{
    const uint8_t *bytes = group->sent[from];

    for (size_t i = 0; i < to; i++)
        bytes += group->sent_nbytes[from][i];
    if (group->sent_nbytes[from][to] != expected_nbytes)
        group->sizes_differ = true;
    else if (expected_nbytes > 0)
        memcpy(out, bytes, (size_t)expected_nbytes);
}

int group_exchange(void *context, const void *send, const uint64_t *send_nbytes, void *receive,
                   const uint64_t *receive_nbytes)
{
    group_seat *seat = context;
    writer_group *group = seat->group;
    uint8_t *out = receive;

    if (++seat->n_calls == group->breaks_at)
        group_break(group);
    group->sent[seat->number] = send;
    group->sent_nbytes[seat->number] = send_nbytes;
    if (!group_meet(group))
        return EPIPE;
    for (size_t i = 0; i < group->n; i++) {
        group_receive(group, i, seat->number, out, receive_nbytes[i]);
        out += receive_nbytes[i];
    }
    if (seat->number == 0)
        group->n_calls++;
    return group_meet(group) ? 0 : EPIPE;
}

void group_write(group_seat *seat, const berth_joint_info *info, const berth_slice *slices,
                 size_t n, berth_params params, group_result *out)
{
    params.stats = &out->stats;
    params.exchange = group_exchange;
    params.exchange_context = seat;
    out->status = berth_joint_write(info->ticket, info->ticket_nbytes, seat->number, slices, n,
                                    &params, &out->receipt, &out->nbytes, &out->error);
    out->n_calls = seat->n_calls;
    if (out->status < 0 && seat->n_calls == 0)
        group_break(seat->group);
}

typedef struct group_thread {
    pthread_t thread;
    group_seat seat;
    void (*write)(group_seat *seat);
} group_thread;

static void *thread_write(void *context)
{
    group_thread *thread = context;

    thread->write(&thread->seat);
    return NULL;
}

void group_run(writer_group *group, size_t n, void (*write)(group_seat *seat), void *contexts,
               size_t context_nbytes)
{
    group_thread threads[MAX_GROUP];
    unsigned breaks_at = group->breaks_at;

    *group = (writer_group){.n = n,
                            .breaks_at = breaks_at,
                            .lock = PTHREAD_MUTEX_INITIALIZER,
                            .changed = PTHREAD_COND_INITIALIZER};
    for (size_t i = 0; i < n; i++) {
        void *own = (char *)contexts + i * context_nbytes;
        threads[i] = (group_thread){.seat = {group, i, 0, own}, .write = write};
        if (pthread_create(&threads[i].thread, NULL, thread_write, &threads[i]) != 0)
            test_give_up("no thread");
    }
    for (size_t i = 0; i < n; i++)
        pthread_join(threads[i].thread, NULL);
    pthread_mutex_destroy(&group->lock);
    pthread_cond_destroy(&group->changed);
}
