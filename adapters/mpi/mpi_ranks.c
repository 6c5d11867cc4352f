/* SPDX-License-Identifier: BSD-3-Clause */
#include "adapters/mpi/mpi_ranks.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The most bytes of one message: a count of MPI is an int. */
#define MAX_MESSAGE_NBYTES ((uint64_t)1 << 30)
#define TAG 1

/* ---- errors ---- */

int bth_mpi_fail(berth_error *error, berth_status code, const char *format, ...)
{
    va_list arguments;

    *error = (berth_error){.code = code, .offset = BERTH_NO_OFFSET};
    va_start(arguments, format);
    (void)vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return code;
}

int bth_mpi_fail_memory(berth_error *error, uint64_t nbytes)
{
    return bth_mpi_fail(error, BERTH_E_MEMORY, "out of memory: %llu bytes",
                        (unsigned long long)nbytes);
}

int bth_mpi_check(int result, const char *function, berth_error *error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;

    if (result == MPI_SUCCESS)
        return 0;
    (void)MPI_Error_string(result, text, &length);
    return bth_mpi_fail(error, BERTH_E_CALLBACK, "%s: %s", function, text);
}

int bth_mpi_end(const berth_error *own, berth_error *error)
{
    if (error)
        *error = *own;
    return own->code;
}

/* ---- begin and end ---- */

static int ranks_check_communicator(MPI_Comm comm, berth_error *error)
{
    int is_initialised = 0, is_finalised = 0, is_inter = 0;

    (void)MPI_Initialized(&is_initialised);
    (void)MPI_Finalized(&is_finalised);
    if (!is_initialised || is_finalised)
        return bth_mpi_fail(error, BERTH_E_ARGUMENT,
                            "MPI is not initialised: call between MPI_Init and MPI_Finalize");
    if (comm == MPI_COMM_NULL)
        return bth_mpi_fail(error, BERTH_E_ARGUMENT, "the communicator is MPI_COMM_NULL");
    if (bth_mpi_check(MPI_Comm_test_inter(comm, &is_inter), "MPI_Comm_test_inter", error) < 0)
        return error->code;
    return is_inter ? bth_mpi_fail(error, BERTH_E_ARGUMENT, "the communicator is of two groups")
                    : 0;
}

int bth_ranks_begin(bth_ranks *ranks, MPI_Comm comm, berth_error *error)
{
    ranks->comm = MPI_COMM_NULL;
    if (ranks_check_communicator(comm, error) < 0 ||
        bth_mpi_check(MPI_Comm_dup(comm, &ranks->comm), "MPI_Comm_dup", error) < 0)
        return error->code;
    (void)MPI_Comm_set_errhandler(ranks->comm, MPI_ERRORS_RETURN);
    (void)MPI_Comm_rank(ranks->comm, &ranks->rank);
    (void)MPI_Comm_size(ranks->comm, &ranks->n);
    return 0;
}

void bth_ranks_end(bth_ranks *ranks)
{
    if (ranks->comm != MPI_COMM_NULL)
        (void)MPI_Comm_free(&ranks->comm);
}

/* ---- the common error ---- */

static void error_name_rank(berth_error *error, int rank)
{
    char message[sizeof error->message];

    memcpy(message, error->message, sizeof message);
    message[sizeof message - 1] = 0;
    int n = snprintf(error->message, sizeof error->message, "rank %d: ", rank);
    (void)snprintf(error->message + n, sizeof error->message - (size_t)n, "%.*s",
                   (int)sizeof error->message - n - 1, message);
}

int bth_ranks_agree(const bth_ranks *ranks, int status, berth_error *error)
{
    const int n = ranks->n;
    int own = ranks->rank, first = 0;

    if (status == 0)
        own = 2 * n;
    else if (status == BERTH_E_PEER) /* a rank that failed by itself knows more */
        own += n;
    if (bth_mpi_check(MPI_Allreduce(&own, &first, 1, MPI_INT, MPI_MIN, ranks->comm),
                      "MPI_Allreduce", error) < 0)
        return error->code;
    if (first == 2 * n)
        return 0;
    first %= n;
    if (bth_mpi_check(MPI_Bcast(error, (int)sizeof *error, MPI_BYTE, first, ranks->comm),
                      "MPI_Bcast", error) == 0)
        error_name_rank(error, first);
    return error->code;
}

int berth_mpi_agree(MPI_Comm comm, berth_error *error)
{
    berth_error own = {.code = BERTH_OK};
    bth_ranks ranks;

    if (!error)
        return BERTH_E_ARGUMENT;
    if (bth_ranks_begin(&ranks, comm, &own) < 0)
        return bth_mpi_end(&own, error);
    int status = bth_ranks_agree(&ranks, error->code, error);
    bth_ranks_end(&ranks);
    return status;
}

/* ---- bytes ---- */

static uint64_t message_nbytes(uint64_t left_nbytes)
{
    return left_nbytes < MAX_MESSAGE_NBYTES ? left_nbytes : MAX_MESSAGE_NBYTES;
}

int bth_ranks_broadcast(const bth_ranks *ranks, void *bytes, uint64_t nbytes, berth_error *error)
{
    for (uint64_t at = 0; at < nbytes; at += message_nbytes(nbytes - at)) {
        int n = (int)message_nbytes(nbytes - at);
        if (bth_mpi_check(MPI_Bcast((char *)bytes + at, n, MPI_BYTE, 0, ranks->comm), "MPI_Bcast",
                          error) < 0)
            return error->code;
    }
    return 0;
}

static int ranks_carry_message(const bth_ranks *ranks, int rank, char *bytes, int n,
                               berth_error *error)
{
    if (ranks->rank == rank)
        return bth_mpi_check(MPI_Send(bytes, n, MPI_BYTE, 0, TAG, ranks->comm), "MPI_Send", error);
    return bth_mpi_check(MPI_Recv(bytes, n, MPI_BYTE, rank, TAG, ranks->comm, MPI_STATUS_IGNORE),
                         "MPI_Recv", error);
}

int bth_ranks_carry(const bth_ranks *ranks, int rank, void *bytes, uint64_t nbytes,
                    berth_error *error)
{
    for (uint64_t at = 0; at < nbytes; at += message_nbytes(nbytes - at))
        if (ranks_carry_message(ranks, rank, (char *)bytes + at, (int)message_nbytes(nbytes - at),
                                error) < 0)
            return error->code;
    return 0;
}
