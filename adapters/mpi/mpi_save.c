/* SPDX-License-Identifier: BSD-3-Clause */
/* Rank 0 plans the file, all write their slices, rank 0 completes it. */
#include <berth/more.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/mpi/mpi_ranks.h"

typedef struct saving {
    bth_ranks ranks;
    const bth_mpi_way *way;
    const void *how; /* of the way */
    void *joint;     /* of rank 0, as all that follows but the receipt */
    void *ticket;    /* the joint save's own; of the other ranks a copy */
    uint64_t ticket_nbytes;
    void *receipt;
    size_t receipt_nbytes;
    uint64_t *all_nbytes; /* of each receipt */
    void *buffer;         /* room for the largest */
    bool has_exchanged;
    bool was_left; /* a rank has failed before its first exchange */
} saving;

static bool saving_is_first(const saving *save)
{
    return save->ranks.rank == 0;
}

/* Sends the ticket to all. */
static int saving_share_ticket(saving *save, berth_error *error)
{
    int status = 0;

    if (bth_ranks_broadcast(&save->ranks, &save->ticket_nbytes, sizeof save->ticket_nbytes, error) <
        0)
        return error->code;
    if (!saving_is_first(save)) {
        save->ticket = malloc(save->ticket_nbytes);
        status = save->ticket ? 0 : bth_mpi_fail_memory(error, save->ticket_nbytes);
    }
    if (bth_ranks_agree(&save->ranks, status, error) < 0)
        return error->code;
    return bth_ranks_broadcast(&save->ranks, save->ticket, save->ticket_nbytes, error);
}

static int saving_begin(saving *save, const char *path, const berth_value *value,
                        const berth_params *params, berth_error *error)
{
    berth_joint_info info = {0};
    int status = 0;

    if (saving_is_first(save))
        status = save->way->begin(&save->joint, path, value, (size_t)save->ranks.n, params,
                                  save->how, &info, error);
    save->ticket = (void *)(uintptr_t)info.ticket;
    save->ticket_nbytes = info.ticket_nbytes;
    if (bth_ranks_agree(&save->ranks, status, error) < 0)
        return error->code;
    return saving_share_ticket(save, error);
}

/* A berth_exchange_fn. */
static int saving_exchange(void *context, const void *send, const uint64_t *send_nbytes,
                           void *receive, const uint64_t *receive_nbytes)
{
    saving *save = context;
    int result = berth_mpi_exchange(&save->ranks.comm, send, send_nbytes, receive, receive_nbytes);

    save->has_exchanged = true;
    save->was_left = result == ECANCELED;
    return result;
}

static int saving_write(saving *save, const berth_slice *slices, size_t n_slices,
                        const berth_params *params, berth_error *error)
{
    berth_params own = params ? *params : (berth_params){.config = NULL};

    own.exchange = saving_exchange;
    own.exchange_context = save;
    int status = save->way->write(save->joint, save->ticket, save->ticket_nbytes,
                                  (size_t)save->ranks.rank, slices, n_slices, &own, save->how,
                                  &save->receipt, &save->receipt_nbytes, error);
    /* The others wait for it. */
    if (status < 0 && !save->has_exchanged)
        (void)bth_ranks_agree_on_errno(save->ranks.comm, ECANCELED);
    return bth_ranks_agree(&save->ranks, save->was_left ? BERTH_E_PEER : status, error);
}

/* Rank 0 learns the sizes of the receipts. */
static int saving_gather_sizes(saving *save, berth_error *error)
{
    const size_t n = (size_t)save->ranks.n;
    uint64_t own = save->receipt_nbytes;
    int status = 0;

    if (saving_is_first(save)) {
        save->all_nbytes = calloc(n, sizeof own);
        status = save->all_nbytes ? 0 : bth_mpi_fail_memory(error, n * sizeof own);
    }
    if (bth_ranks_agree(&save->ranks, status, error) < 0)
        return error->code;
    return bth_mpi_check(
        MPI_Gather(&own, 1, MPI_UINT64_T, save->all_nbytes, 1, MPI_UINT64_T, 0, save->ranks.comm),
        "MPI_Gather", error);
}

/* Rank 0 has room for the largest receipt before any rank sends one. */
static int saving_make_room(saving *save, berth_error *error)
{
    uint64_t most = 1;
    int status = 0;

    if (saving_gather_sizes(save, error) < 0)
        return error->code;
    if (saving_is_first(save)) {
        for (int i = 1; i < save->ranks.n; i++)
            most = save->all_nbytes[i] > most ? save->all_nbytes[i] : most;
        save->buffer = malloc(most);
        status = save->buffer ? 0 : bth_mpi_fail_memory(error, most);
    }
    return bth_ranks_agree(&save->ranks, status, error);
}

/*
 * Rank 0: one receipt after the other, so that it needs little memory beside the joint save's. All
 * are received, also if one is refused: their senders wait.
 */
static int saving_add_receipts(saving *save, berth_error *error)
{
    const bth_mpi_way *way = save->way;
    int status = way->add_receipt(save->joint, 0, save->receipt, save->receipt_nbytes, error);

    for (int i = 1; i < save->ranks.n; i++) {
        uint64_t nbytes = save->all_nbytes[i];
        berth_error carried = {.code = BERTH_OK};
        if (bth_ranks_carry(&save->ranks, i, save->buffer, nbytes, &carried) < 0)
            return bth_mpi_end(&carried, error);
        if (status == 0)
            status = way->add_receipt(save->joint, (size_t)i, save->buffer, nbytes, error);
    }
    return status;
}

/* Rank 0: completes the file. */
static int saving_complete(saving *save, berth_error *error)
{
    void *joint = save->joint;

    if (saving_add_receipts(save, error) < 0)
        return error->code;
    save->joint = NULL;
    return save->way->finish(joint, error);
}

static int saving_finish(saving *save, berth_error *error)
{
    int status;

    if (saving_make_room(save, error) < 0)
        return error->code;
    if (saving_is_first(save))
        status = saving_complete(save, error);
    else
        status = bth_ranks_carry(&save->ranks, save->ranks.rank, save->receipt,
                                 save->receipt_nbytes, error);
    return bth_ranks_agree(&save->ranks, status, error);
}

static void saving_end(saving *save, berth_error *error)
{
    berth_error left = {.code = BERTH_OK};
    size_t n = strlen(error->message);

    if (!saving_is_first(save))
        free(save->ticket);
    if (save->joint && save->way->abort(save->joint, &left) < 0 && n + 3 < sizeof error->message)
        (void)snprintf(error->message + n, sizeof error->message - n, "; %.300s", left.message);
    save->way->free_receipt(save->receipt);
    free(save->all_nbytes);
    free(save->buffer);
    bth_ranks_end(&save->ranks);
}

int bth_mpi_save(MPI_Comm comm, const bth_mpi_way *way, const void *how, const char *path,
                 const berth_value *value, const berth_slice *slices, size_t n_slices,
                 const berth_params *params, berth_error *error)
{
    berth_error own = {.code = BERTH_OK};
    saving save = {.way = way, .how = how};

    if (bth_ranks_begin(&save.ranks, comm, &own) < 0)
        return bth_mpi_end(&own, error);
    /* The first that the ranks do: berth_mpi_agree meets it. */
    if (bth_ranks_agree(&save.ranks, 0, &own) == 0 &&
        saving_begin(&save, path, value, params, &own) == 0 &&
        saving_write(&save, slices, n_slices, params, &own) == 0)
        (void)saving_finish(&save, &own);
    saving_end(&save, &own);
    return bth_mpi_end(&own, error);
}

/* ---- to a file ---- */

static int file_begin(void **joint, const char *path, const berth_value *value, size_t n,
                      const berth_params *params, const void *how, berth_joint_info *info,
                      berth_error *error)
{
    berth_joint *made = NULL;
    int status = berth_joint_begin(path, value, n, params, &made, info, error);

    (void)how;
    *joint = made;
    return status;
}

static int file_write(void *joint, const void *ticket, size_t ticket_nbytes, size_t writer,
                      const berth_slice *slices, size_t n_slices, const berth_params *params,
                      const void *how, void **receipt, size_t *receipt_nbytes, berth_error *error)
{
    (void)joint;
    (void)how;
    return berth_joint_write(ticket, ticket_nbytes, writer, slices, n_slices, params, receipt,
                             receipt_nbytes, error);
}

static int file_add_receipt(void *joint, size_t writer, const void *receipt, size_t nbytes,
                            berth_error *error)
{
    (void)writer; /* the receipt says it */
    return berth_joint_add_receipt(joint, receipt, nbytes, error);
}

static int file_finish(void *joint, berth_error *error)
{
    return berth_joint_finish(joint, error);
}

static int file_abort(void *joint, berth_error *error)
{
    (void)error;
    berth_joint_abort(joint);
    return 0;
}

int berth_mpi_save(MPI_Comm comm, const char *path, const berth_value *value,
                   const berth_slice *slices, size_t n_slices, const berth_params *params,
                   berth_error *error)
{
    static const bth_mpi_way file = {.begin = file_begin,
                                     .write = file_write,
                                     .add_receipt = file_add_receipt,
                                     .finish = file_finish,
                                     .abort = file_abort,
                                     .free_receipt = berth_free};

    return bth_mpi_save(comm, &file, NULL, path, value, slices, n_slices, params, error);
}
