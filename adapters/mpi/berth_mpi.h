/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * berth_mpi.h - checkpoints of MPI programs: all ranks save one file together, and each reads its
 * slices.
 *
 *     mpicc program.c $(pkg-config --variable=sources berth-mpi) \
 *         $(pkg-config --cflags --libs berth-mpi)
 *
 * Each MPI has a binary interface of its own. So this part of Berth is no library: its four
 * sources are compiled with the program, by its mpicc. They need MPI 3, C99 and POSIX.
 *
 * What holds for all functions here, if nothing else is said:
 *   - They are collective: all ranks of `comm` call them, in the same order. What travels between
 *     ranks does so in a duplicate of `comm`, so it never meets messages of the program.
 *   - Their result is collective, too: if one rank fails, all ranks return its status, and a
 * message that begins with the rank: "rank 2: model.pt: ...". If several fail, it is the lowest
 * rank's. `error` may be NULL, as in berth.h.
 *   - They fail in one rank alone with BERTH_E_ARGUMENT if MPI is not initialised, or `comm` is no
 *     communicator of one group; and with BERTH_E_CALLBACK if an MPI function failed, where MPI
 *     returns from that at all.
 *   - Only the thread that calls them calls MPI.
 */
#ifndef BERTH_MPI_H
#define BERTH_MPI_H

#include <berth.h>
#include <berth/joint.h>
#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Saves one checkpoint, of which each rank has a part: the file is byte for byte the one that
 * berth_save(path, value) of one process with all the bytes would write. It is written in parallel,
 * each rank its slices, and replaces the old file in the end. Rank 0 is the coordinator of
 * berth_joint_begin; what is said there holds here.
 *
 * - Tensors that are spread over the ranks: BERTH_ELSEWHERE in `value`; each rank gives its slices
 *   (berth_slice_of), along any dimension. Those that lie in runs of less than 1 MiB are exchanged
 *   between the ranks; for this each needs at most 64 MiB.
 * - Tensors that all ranks have: BERTH_ELSEWHERE too; each rank writes its share (berth_mpi_share).
 * - Everything else, and small tensors that all ranks have: their bytes are in rank 0's `value`.
 *
 * Parameters: path: rank 0's counts; all ranks must see its folder under the same path. value: of
 * rank 0; the other ranks' is not looked at and may be NULL. slices: n_slices of this rank; NULL if
 * there are none. params: of this rank; NULL as in berth_save. What decides bytes is rank 0's. Its
 * exchange is not looked at. base: each rank opens its own, and shares blocks of what it writes
 * (berth/more.h, berth/joint.h). stats: what this rank wrote; of rank 0, what it wrote as the
 * coordinator. Lifetime: all that is given is the caller's, and must not change until the function
 * returns. Errors: as for berth_joint_begin, berth_joint_write and berth_joint_finish. After any of
 * them but BERTH_E_NOT_DURABLE the path keeps its old file. If a rank dies, MPI ends the others;
 * then what is left is a temporary, as after any save that was killed. Threads: one at a time for
 * one communicator.
 */
BERTH_MUST_CHECK int berth_mpi_save(MPI_Comm comm, const char *path, const berth_value *value,
                                    const berth_slice *slices, size_t n_slices,
                                    const berth_params *params, berth_error *error);

struct berth_upload_params; /* berth_curl.h */

/*
 * The same to S3, as one multipart upload by all ranks: each part is sent by one of them, which
 * gets from the others what they have of it. Compile `pkg-config --variable=url_source berth-mpi`,
 * too, and link with -lberth_curl -ldeflate -lz.
 * Parameters: url: s3://BUCKET/KEY; rank 0's counts. upload_params: of this rank; NULL: the
 * defaults. What decides parts and conditions is rank 0's. Each rank has credentials of its own.
 * Otherwise as for berth_mpi_save; memory: berth_joint_send in berth/joint.h.
 * Errors: as for berth_joint_url_begin, _write and _finish (berth_curl.h). After any of them the
 * old object stays. If a rank dies, MPI ends the others; then what is left is an upload, for `berth
 * clean`.
 */
BERTH_MUST_CHECK int berth_mpi_save_url(MPI_Comm comm, const char *url, const berth_value *value,
                                        const berth_slice *slices, size_t n_slices,
                                        const berth_params *params,
                                        const struct berth_upload_params *upload_params,
                                        berth_error *error);

/*
 * This rank's share in a tensor that all ranks have, as a slice for berth_mpi_save. It is not
 * collective. The shares are whole MiB, so a small tensor is written by one rank.
 * Parameters: index: the number of the tensor among those that are shared, the same in all ranks:
 * small ones then do not all go to one rank. nbytes: of its storage; data: all of it.
 * Lifetime: `name` and `data` are the caller's, and must live as long as the slice is used.
 * Threads: any that may call MPI.
 */
static inline berth_slice berth_mpi_share(MPI_Comm comm, size_t index, const char *name,
                                          uint64_t nbytes, const void *data)
{
    uint64_t offset, share_nbytes;
    int rank, n_ranks;

    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &n_ranks);
    berth_deal_bytes(index, nbytes, (size_t)n_ranks, (size_t)rank, &offset, &share_nbytes);
    return berth_slice_bytes(name, offset, share_nbytes, (const char *)data + offset);
}

/* A checkpoint that all ranks have opened. */
typedef struct berth_mpi_file {
    berth_checkpoint *checkpoint; /* of this rank; berth_mpi_close closes it, and nothing else */
    uint64_t reserved[4];
} berth_mpi_file;

/*
 * Opens a checkpoint in all ranks, with one reader of its head: rank 0 opens it as berth_open does,
 * and sends the bytes that this took to the others. They check them just as much, and read nothing
 * from the file for it. Then each rank reads its slices by itself:
 *
 *     berth_mpi_open(comm, "model.pt", NULL, &file, &error)
 *     weight = berth_find_tensor(file->checkpoint, "weight", &error)
 *     berth_tensor_read_slice(file->checkpoint, weight, starts, lengths, buffer, &error)
 *     berth_mpi_agree(comm, &error)                                 // if all are to know
 *     berth_mpi_close(file)
 *
 * The file is read by berth_open_source, so it is never mapped: berth_tensor_data reads the whole
 * storage into memory. It may have been written by any number of ranks.
 * Parameters: path: rank 0's counts; all ranks must see the file under the same path. params: of
 * this rank; may be NULL. Its load.check should be the same in all ranks: what rank 0 did not read,
 * the others read themselves. stats counts what came from rank 0 as read.
 * Lifetime: *file is the caller's until berth_mpi_close; NULL on failure. It holds an open
 * descriptor, and the bytes that came from rank 0: at most 64 MiB, usually the first MiB of the
 * file. Errors: as for berth_open_source. BERTH_E_NOT_FOUND, BERTH_E_SYSTEM: a rank cannot open the
 * file. BERTH_E_ARGUMENT: the path is NULL, or that of no regular file; or a rank sees another file
 * there than rank 0, by size and time of the last change, as when the file was just replaced.
 * Threads: one at a time for one communicator. The checkpoint may be used as any other.
 */
BERTH_MUST_CHECK int berth_mpi_open(MPI_Comm comm, const char *path, const berth_params *params,
                                    berth_mpi_file **file, berth_error *error);

/*
 * Closes a file and its checkpoint. It is not collective, and calls nothing of MPI.
 * Parameters: file: NULL: does nothing.
 * Threads: no other thread may use the checkpoint any more.
 */
void berth_mpi_close(berth_mpi_file *file);

/*
 * Makes the error of one rank that of all, as the other functions here do.
 *
 * A rank that fails before berth_mpi_save or berth_mpi_open, in which the others will wait for it,
 * calls this in its place: they return its error.
 * Parameters: error: not NULL. Give what happened in this rank: code BERTH_OK, or a status and a
 * message. Receives what is the same in all ranks.
 * Returns: 0: no rank has failed; or the status of the first that has.
 * Threads: one at a time for one communicator.
 */
int berth_mpi_agree(MPI_Comm comm, berth_error *error);

/*
 * Exchanges bytes among all ranks: each sends some to each. A berth_exchange_fn, for programs that
 * use berth_joint_write themselves; berth_mpi_save brings its own. It works in the communicator
 * itself, not in a duplicate, and its result is no status, but an errno value.
 * Parameters: comm: the address of the communicator (MPI_Comm *): berth_params.exchange_context.
 * send: send_nbytes[0] bytes for rank 0, then those for rank 1, and so on. receive: room for
 * receive_nbytes[0] bytes of rank 0, and so on; what a rank sends and what the other expects must
 * be equal. Shapes: send_nbytes, receive_nbytes: one size for each rank. Returns: 0, or the same
 * errno value in all ranks: EMSGSIZE: one sends or receives more than INT_MAX bytes in all; ENOMEM.
 * In one rank alone: EIO: a function of MPI failed, where MPI returns from that. Threads: one at a
 * time for one communicator.
 */
int berth_mpi_exchange(void *comm, const void *send, const uint64_t *send_nbytes, void *receive,
                       const uint64_t *receive_nbytes);

#ifdef __cplusplus
}
#endif

#endif
