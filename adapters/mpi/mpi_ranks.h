/* SPDX-License-Identifier: BSD-3-Clause */
/* The ranks of one operation, what travels between them, and their common error. */
#ifndef BTH_MPI_RANKS_H
#define BTH_MPI_RANKS_H

#include <berth_mpi.h>

typedef struct bth_ranks {
    MPI_Comm comm; /* a duplicate of the caller's */
    int rank;
    int n;
} bth_ranks;

/* Collective, as all below. Fails in this rank alone. */
int bth_ranks_begin(bth_ranks *ranks, MPI_Comm comm, berth_error *error);

void bth_ranks_end(bth_ranks *ranks);

/* Gives all ranks the error of the first whose status is not 0; BERTH_E_PEER only counts if there
 * is no other. Returns what they have in common. */
int bth_ranks_agree(const bth_ranks *ranks, int status, berth_error *error);

/* Sends bytes of rank 0 to all. */
int bth_ranks_broadcast(const bth_ranks *ranks, void *bytes, uint64_t nbytes, berth_error *error);

/* Sends bytes of `rank` to rank 0; only these two call it. */
int bth_ranks_carry(const bth_ranks *ranks, int rank, void *bytes, uint64_t nbytes,
                    berth_error *error);

/* The worst errno value of all ranks: each call of berth_mpi_exchange begins with that. A rank that
 * will not call it makes the others' fail by it. */
int bth_ranks_agree_on_errno(MPI_Comm comm, int own);

/* Fills an error. Returns its status. */
int bth_mpi_fail(berth_error *error, berth_status code, const char *format, ...);

int bth_mpi_fail_memory(berth_error *error, uint64_t nbytes);

/* Of what a function of MPI returned. Returns 0 or a status. */
int bth_mpi_check(int result, const char *function, berth_error *error);

/* Copies an error to the caller, if it wants one. Returns its status. */
int bth_mpi_end(const berth_error *own, berth_error *error);

/* Where a save goes. joint: of rank 0; NULL in the others. how: more params. */
typedef struct bth_mpi_way {
    int (*begin)(void **joint, const char *path, const berth_value *value, size_t n,
                 const berth_params *params, const void *how, berth_joint_info *info,
                 berth_error *error);
    int (*write)(void *joint, const void *ticket, size_t ticket_nbytes, size_t writer,
                 const berth_slice *slices, size_t n_slices, const berth_params *params,
                 const void *how, void **receipt, size_t *receipt_nbytes, berth_error *error);
    int (*add_receipt)(void *joint, size_t writer, const void *receipt, size_t nbytes,
                       berth_error *error);
    int (*finish)(void *joint, berth_error *error);
    int (*abort)(void *joint, berth_error *error);
    void (*free_receipt)(void *receipt);
} bth_mpi_way;

/* berth_mpi_save, in a way. */
int bth_mpi_save(MPI_Comm comm, const bth_mpi_way *way, const void *how, const char *path,
                 const berth_value *value, const berth_slice *slices, size_t n_slices,
                 const berth_params *params, berth_error *error);

#endif
