/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * berth/joint.h - many writers, one file.
 */
#ifndef BERTH_JOINT_H
#define BERTH_JOINT_H

#include <berth.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A save of one checkpoint whose bytes several processes have. One process is the coordinator; it
 * plans the file and reserves its space, and in the end completes the file and replaces the old
 * one:
 *
 *     berth_joint_begin(path, outline, 4, NULL, &joint, &info, &error)  // info.ticket: to all
 * writers berth_joint_add_receipt(joint, receipt, nbytes, &error)       // one from each writer
 *     berth_joint_finish(joint, &error)
 *
 * Each of the 4 writers, one of which may be the coordinator's process, calls
 *
 *     const berth_slice slices[] = {berth_slice_of("weight", starts, lengths, data)};
 *     berth_joint_write(ticket, ticket_nbytes, number, slices, 1, NULL, &receipt, &nbytes, &error)
 *
 * and sends the receipt back. Tickets and receipts are bytes; the caller carries them, by MPI or in
 * any other way. All processes need the same version of Berth and see the file system of the path,
 * under the same path.
 *
 * The outline is the value to be saved. Storages whose bytes are with the writers are made of
 * BERTH_ELSEWHERE; the coordinator writes all others itself. The file is byte for byte the one that
 * berth_save of the whole value would write to that path, whoever wrote which slice. What
 * berth_save says about paths, rights and temporaries holds for it too.
 *
 * No block of the file (4096 bytes, or a page) is written by two processes. The bytes of a slice
 * that lie in blocks with bytes of others travel in the receipt: at most 8 KiB for each range of a
 * slice, and small slices as a whole. With save.storage_alignment=4096 and slices of whole 4096
 * bytes there are none. Between whole tensors of one writer that follow each other in the file
 * nothing travels either: it writes their headers, too. Where all writers together have more than
 * 16 MiB of them, an exchange (see below) is better: then the coordinator gets only what shares a
 * block with a header.
 *
 * A slice along another dimension than the first lies in runs: one for each row, say. Runs of 1 MiB
 * and more are written by the writer that has them. Shorter ones would share nearly every block
 * with other writers; they need an exchange of bytes between the writers, which the caller carries,
 * too:
 *
 *     berth_params params = {.exchange = by_my_network, .exchange_context = network};
 *
 * Then each writer collects the short runs of all, and many fragments, in windows of the file, 8
 * MiB at a time, and writes each while the next one is exchanged. Either all writers of a save give
 * an exchange, or none does.
 *
 * If a writer or the coordinator fails or dies, the path keeps its old file, as long as
 * berth_joint_finish was not called. A coordinator that dies leaves its temporary, as any save that
 * is killed. A process that may still be in berth_joint_write must be gone before its number is
 * given to another one, and before berth_joint_finish is called: it has the new file open.
 */
typedef struct berth_joint berth_joint;

/* The largest number of writers. */
#define BERTH_MAX_WRITERS 1048576

/*
 * What a joint save is, for its writers and in numbers.
 * Lifetime: the ticket lives as long as the joint save.
 */
typedef struct berth_joint_info {
    const void *ticket; /* for berth_joint_write */
    size_t ticket_nbytes;
    uint64_t nbytes; /* exact size of the file */
    size_t n_writers;
    uint64_t reserved[4];
} berth_joint_info;

/*
 * Begins a joint save in the coordinator.
 * Parameters: outline: see above. n_writers: 1 to BERTH_MAX_WRITERS; each of them must give a
 * receipt, also if it has nothing to write. params: as for berth_save, without storage_stats. base:
 * for what the coordinator writes; if it can be used, each writer reserves the room of what it
 * writes, so that what is shared takes none.
 * info: NULL: not wanted.
 * Lifetime: the outline, and the bytes that it has, must live unchanged until the joint save ends,
 * and so must what params points to. *joint is the caller's until berth_joint_finish or
 * berth_joint_abort; NULL on failure.
 * Errors: as for berth_save. BERTH_E_ARGUMENT: a storage that is elsewhere has no tensor in the
 * outline, so that no slice could name it; or the path leads to a file without a name.
 * BERTH_E_AMBIGUOUS: two tensors that are elsewhere have the same path (see berth_find).
 */
BERTH_API BERTH_MUST_CHECK int berth_joint_begin(const char *path, const berth_value *outline,
                                                 size_t n_writers, const berth_params *params,
                                                 berth_joint **joint, berth_joint_info *info,
                                                 berth_error *error);

/*
 * Adds the receipt of one writer, in any order. It is treated as bytes of a stranger.
 * Parameters: receipt: nbytes bytes, which are copied.
 * Errors: BERTH_E_TRUNCATED, BERTH_E_CHECKSUM: it was cut or changed. BERTH_E_UNSUPPORTED: it is of
 * another version of Berth. BERTH_E_ARGUMENT: it is no receipt, of another save, invalid, or that
 * writer's second one. After an error the joint save is as before; another receipt may be added.
 */
BERTH_API BERTH_MUST_CHECK int berth_joint_add_receipt(berth_joint *joint, const void *receipt,
                                                       size_t nbytes, berth_error *error);

/*
 * Writes the rest of the file, makes it durable, and puts it at its path. In debug mode
 * (BERTH_SERIALIZATION_DEBUG=1) all that the writers wrote is read, and compared with the checksums
 * in their receipts.
 * Lifetime: frees `joint`, on failure too.
 * Errors: BERTH_E_ARGUMENT: a writer has given no receipt; or a byte of a storage was written by
 * nobody, or by two writers. The message names the writers, the storage and its tensor. Otherwise
 * as for berth_save.
 */
BERTH_API BERTH_MUST_CHECK int berth_joint_finish(berth_joint *joint, berth_error *error);

/*
 * Gives up: the path keeps its old file.
 * Parameters: joint: NULL: does nothing.
 * Lifetime: frees `joint`.
 */
BERTH_API void berth_joint_abort(berth_joint *joint);

/*
 * A function of the caller that exchanges bytes among all writers of one joint save: each writer
 * sends some to each, itself too. MPI_Alltoallv does that.
 * Parameters: context: berth_params.exchange_context. send: send_nbytes[0] bytes for writer 0, then
 * those for writer 1, and so on. receive: room for receive_nbytes[0] bytes of writer 0, and so on.
 * What one writer sends and what the other one expects is always equal. send and receive do not
 * overlap.
 * Shapes: send_nbytes, receive_nbytes: one size for each writer of the save; 0 is a size.
 * Lifetime: everything is Berth's, until the function returns.
 * Returns: 0, when all is received and `send` is no longer read; or an errno value. If it fails in
 * one writer, it must fail in all, by a timeout if need be: Berth does not call it again.
 * Threads: it is called on the thread that called berth_joint_write, and all writers call it
 * equally often.
 */
typedef int (*berth_exchange_fn)(void *context, const void *send, const uint64_t *send_nbytes,
                                 void *receive, const uint64_t *receive_nbytes);

typedef enum berth_slice_kind {
    BERTH_SLICE_WHOLE = 1,
    BERTH_SLICE_BOX = 2,
    BERTH_SLICE_BYTES = 3
} berth_slice_kind;

/* What a writer has. Made by berth_slice_whole, berth_slice_of or berth_slice_bytes. */
typedef struct berth_slice {
    berth_slice_kind kind;
    const char *name; /* name or path of a tensor of the outline, as berth_tensor_at gives them */
    const void *data; /* in this machine's byte order; must not change during berth_joint_write */
    const int64_t *starts;
    const int64_t *lengths;
    uint64_t offset;
    uint64_t nbytes;
    const char *device; /* where `data` lies: "cuda:0", ...; NULL: in memory of the host. It is the
                           caller's to set. berth_joint_write copies such slices to the host first,
                           and keeps them to its end: that takes as much memory as their bytes */
    void *ready;        /* an event of that device, as for berth_device_storage_new; NULL: none */
    uint64_t reserved[2]; /* 0 */
} berth_slice;

/* All elements of a contiguous tensor, in row-major order. */
static inline berth_slice berth_slice_whole(const char *name, const void *data)
{
    const berth_slice slice = {BERTH_SLICE_WHOLE, name, data, NULL, NULL, 0, 0, NULL, NULL, {0}};
    return slice;
}

/*
 * Elements starts[d] to starts[d] + lengths[d] - 1 of each dimension d of a contiguous tensor.
 * Parameters: data: these elements alone, in row-major order.
 * Shapes: starts, lengths: one number for each dimension of the tensor.
 */
static inline berth_slice berth_slice_of(const char *name, const int64_t *starts,
                                         const int64_t *lengths, const void *data)
{
    const berth_slice slice = {BERTH_SLICE_BOX, name, data, starts, lengths, 0, 0, NULL, NULL, {0}};
    return slice;
}

/* Bytes of the storage of a tensor, from `offset` on. */
static inline berth_slice berth_slice_bytes(const char *name, uint64_t offset, uint64_t nbytes,
                                            const void *data)
{
    const berth_slice slice = {
        BERTH_SLICE_BYTES, name, data, NULL, NULL, offset, nbytes, NULL, NULL, {0}};
    return slice;
}

/*
 * The share of one writer in a storage that all of them have. Shares are whole MiB, but for the end
 * of the storage. A writer whose share is empty has *share_nbytes 0.
 * Parameters: index: the number of the storage among those that are dealt out, so that small ones
 * do not all go to one writer. n_writers: 1 or more. offset, share_nbytes: receive the share.
 */
static inline void berth_deal_bytes(size_t index, uint64_t nbytes, size_t n_writers, size_t writer,
                                    uint64_t *offset, uint64_t *share_nbytes)
{
    const uint64_t unit = (uint64_t)1 << 20;
    const uint64_t n_units = nbytes / unit + (nbytes % unit != 0);
    const uint64_t turn = (writer + index) % n_writers;
    const uint64_t each = n_units / n_writers, more = n_units % n_writers;
    const uint64_t begin = (each * turn + (turn < more ? turn : more)) * unit;
    const uint64_t end = begin + (each + (turn < more)) * unit;
    *offset = begin < nbytes ? begin : nbytes;
    *share_nbytes = (end < nbytes ? end : nbytes) - *offset;
}

/*
 * Writes slices of one writer into the file, makes them durable as the coordinator's
 * save.durability says, and gives a receipt for the coordinator. The ticket is treated as bytes of
 * a stranger: nothing but a temporary that belongs to its save is ever written to.
 *
 * With params->exchange all writers call this at the same time, and wait for each other. The
 * exchange is called twice, and if any of them has short runs or many fragments, more often for
 * each window. If one writer fails, all return an error: that one its own, the others
 * BERTH_E_PEER, which names it. So nobody waits in vain, with three exceptions, which the caller
 * must pass on to the others as a failure of their exchange: a writer that dies; one that returns
 * without having called its exchange, because it could not read the ticket, or had no memory for
 * 48 bytes a writer; and one whose exchange is wrong (BERTH_E_ARGUMENT): it gives bytes of one
 * writer as those of another, or announces a message that is larger than any that a writer sends,
 * so that there is no room for it. Berth cannot know whether the exchange has as many writers as
 * the ticket says: do not take a ticket from a stranger for it. Beside the slices, the receipt,
 * and what any save takes, the exchange takes at most 64 MiB of memory (with more than 18,000
 * writers 2 KiB for each of these more), and 96 bytes for each range of a slice.
 * Parameters: ticket: ticket_nbytes bytes. writer: its number, less than the n_writers of
 * berth_joint_begin. slices: n_slices of them, which do not overlap; several may be of one tensor.
 * params: its config (what decides bytes is the coordinator's), progress, stats, exchange and base
 * are used. base (berth/more.h): a file that this writer can open; the others may have another one,
 * or none. Whole blocks of its slices are shared where the storage of the same name and size in the
 * base has these bytes; what is exchanged is written.
 * Lifetime: *receipt is the caller's, to be freed by berth_free; NULL on failure.
 * Errors: BERTH_E_NOT_FOUND: a name that the outline does not have, or the save has ended.
 * BERTH_E_ARGUMENT: a slice is invalid, or overlaps another one; the ticket is invalid, or of
 * another save; what another writer sent is invalid. BERTH_E_TRUNCATED, BERTH_E_CHECKSUM,
 * BERTH_E_UNSUPPORTED: the ticket was cut, changed, or is of another version.
 * BERTH_E_UNSUPPORTED: a slice lies in runs of less than 1 MiB, and there is no exchange.
 * BERTH_E_ARGUMENT, BERTH_E_DEVICE: the data of a slice are not on its device, or it failed.
 * BERTH_E_ARGUMENT: this process cannot read the data of a slice without a device, as those that
 * lie on one; where the system lets a process find out.
 * BERTH_E_CALLBACK: the exchange failed. BERTH_E_PEER: another writer failed. Otherwise as for
 * berth_save. After an error nothing of what was written counts; berth_joint_write may be called
 * again; with an exchange, by all.
 * Threads: any; one at a time for one number.
 */
BERTH_API BERTH_MUST_CHECK int berth_joint_write(const void *ticket, size_t ticket_nbytes,
                                                 size_t writer, const berth_slice *slices,
                                                 size_t n_slices, const berth_params *params,
                                                 void **receipt, size_t *receipt_nbytes,
                                                 berth_error *error);

/* ---- an object of many writers ---- */

/*
 * Object stores take an object as parts of one size, each sent by one process. So a joint save to
 * one has other steps. The coordinator, which is writer 0, begins, and tells the others the ticket;
 * then all call berth_joint_send with an exchange, and each gives whole parts to its sink:
 *
 *     berth_joint_begin_object("s3://bucket/model.pt", outline, 4, NULL, &joint, &info, &error)
 *     berth_joint_object object = {.sink = sink, .part_nbytes = nbytes, .joint = joint}
 *     berth_joint_send(ticket, ticket_nbytes, 0, slices, 1, &object, &params, &error)
 *     berth_joint_abort(joint) // when all is sent, too
 *
 * adapters/curl does so for S3 (berth_joint_url_begin), with the store's own beginning and end.
 * There are no receipts: when berth_joint_send returns 0 in one writer, each part was sent once,
 * and the whole is byte for byte what berth_save would write.
 *
 * Most bytes stay where they are: who has more than half of a part sends it, and gets the rest of
 * it from the others. Parts of which nobody has so much are dealt out.
 */
typedef struct berth_joint_object {
    berth_sink sink;      /* gets whole parts (the last one may be shorter), several at a time */
    uint64_t part_nbytes; /* of all parts but the last one; the same for all writers */
    berth_joint *joint;   /* of writer 0; NULL for the others */
    uint64_t reserved[4]; /* 0 */
} berth_joint_object;

/*
 * Begins a joint save to an object store in the coordinator, as berth_joint_begin does one to a
 * file. Nothing is written by it.
 * Parameters: name: for messages; the archive's name is that of its last part, as of a path.
 * outline, n_writers, params, joint, info: as for berth_joint_begin.
 * Lifetime: as there, but *joint ends with berth_joint_abort.
 * Errors: as for berth_joint_begin.
 */
BERTH_API BERTH_MUST_CHECK int
berth_joint_begin_object(const char *name, const berth_value *outline, size_t n_writers,
                         const berth_params *params, berth_joint **joint, berth_joint_info *info,
                         berth_error *error);

/*
 * Sends all parts of an object, together with all other writers. Each byte of a slice is summed
 * first, so slices are read twice. Memory, beside the slices: two parts for messages (at most 512
 * MiB), and one part more than are sent at a time (io.threads; 4 unless it is set); in the
 * coordinator also what is no tensor: about 250 bytes a tensor, and the pickle.
 * Parameters: params: as for berth_joint_write, with an exchange. object: see above.
 * Lifetime: all that is given is the caller's. When this returns, no sink is being called.
 * Errors: as for berth_joint_write, and BERTH_E_CALLBACK: a sink failed. BERTH_E_ARGUMENT: a byte
 * of a storage was given by nobody, or by two writers. BERTH_E_UNSUPPORTED: save.byteorder is not
 * that of the machine. After an error the parts that were sent do not count.
 * Threads: one at a time for one number.
 */
BERTH_API BERTH_MUST_CHECK int berth_joint_send(const void *ticket, size_t ticket_nbytes,
                                                size_t writer, const berth_slice *slices,
                                                size_t n_slices, const berth_joint_object *object,
                                                const berth_params *params, berth_error *error);

#ifdef __cplusplus
}
#endif

#endif /* BERTH_JOINT_H */
