/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "adapters/mpi/mpi_ranks.h"

/* The sizes and places of MPI_Alltoallv: int, one for each rank. */
typedef struct places {
    int *send_n;
    int *send_at;
    int *receive_n;
    int *receive_at;
} places;

/* The sum, or UINT64_MAX if it has no place in an int. */
static uint64_t sum_of(const uint64_t *nbytes, int n)
{
    uint64_t sum = 0;

    for (int i = 0; i < n; i++) {
        if (nbytes[i] > INT_MAX - sum)
            return UINT64_MAX;
        sum += nbytes[i];
    }
    return sum;
}

static void set_places(int *n_of, int *at_of, const uint64_t *nbytes, int n)
{
    int at = 0;

    for (int i = 0; i < n; i++) {
        n_of[i] = (int)nbytes[i];
        at_of[i] = at;
        at += n_of[i];
    }
}

/* None begins what another one cannot do. */
int bth_ranks_agree_on_errno(MPI_Comm comm, int own)
{
    int worst = 0;

    return MPI_Allreduce(&own, &worst, 1, MPI_INT, MPI_MAX, comm) == MPI_SUCCESS ? worst : EIO;
}

int berth_mpi_exchange(void *comm, const void *send, const uint64_t *send_nbytes, void *receive,
                       const uint64_t *receive_nbytes)
{
    const MPI_Comm all = *(const MPI_Comm *)comm;
    int n = 0;

    (void)MPI_Comm_size(all, &n);
    int *room = malloc(4 * (size_t)n * sizeof *room);
    const bool fits = sum_of(send_nbytes, n) <= INT_MAX && sum_of(receive_nbytes, n) <= INT_MAX;
    int result = bth_ranks_agree_on_errno(all, !room ? ENOMEM : fits ? 0 : EMSGSIZE);
    if (result == 0) {
        places at = {room, room + n, room + 2 * n, room + 3 * n};
        set_places(at.send_n, at.send_at, send_nbytes, n);
        set_places(at.receive_n, at.receive_at, receive_nbytes, n);
        if (MPI_Alltoallv(send, at.send_n, at.send_at, MPI_BYTE, receive, at.receive_n,
                          at.receive_at, MPI_BYTE, all) != MPI_SUCCESS)
            result = EIO;
    }
    free(room);
    return result;
}
