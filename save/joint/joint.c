/* SPDX-License-Identifier: BSD-3-Clause */
/* The coordinator of a joint save. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "io/direct.h"
#include "io/file.h"
#include "io/syscalls.h"
#include "save/joint/joint_file.h"
#include "save/joint/joint_parts.h"
#include "save/save_operation.h"

struct berth_joint {
    bth_operation operation;
    uint8_t *ticket_bytes;
    bth_ticket ticket;       /* as a writer reads it */
    uint8_t **receipt_bytes; /* one a writer; NULL: none yet */
    bth_receipt *receipts;
    bth_joint_parts parts;
};

/* X11: in a child of fork, the file is its parent's. */
static int joint_check_process(const berth_joint *joint, berth_error *error)
{
    if (!joint)
        return bth_fail_argument(error, "the joint save is NULL");
    return joint->operation.commit.process == bth_process_unique_number()
               ? 0
               : bth_fail_forked(error, "joint save");
}

static int joint_end(berth_joint *joint, berth_error *error)
{
    int status = bth_operation_end(&joint->operation, error);

    for (size_t i = 0; joint->receipt_bytes && i < joint->ticket.n_writers; i++)
        bth_release(joint->receipt_bytes[i]);
    bth_release(joint->receipt_bytes);
    bth_release(joint->receipts);
    bth_joint_parts_free_all(&joint->parts);
    bth_ticket_free_all(&joint->ticket);
    bth_release(joint->ticket_bytes);
    bth_release(joint);
    return status;
}

/* ---- begin ---- */

/* X4: refused before its old content is lost. */
static int joint_check_target(const char *path, berth_error *error)
{
    bth_target_file target;

    if (!path)
        return bth_fail_argument(error, "the path is NULL");
    if (bth_target_file_find(path, false, &target, error) == 0 && target.nameless >= 0)
        bth_fail_argument(error, "it has no name, so other processes cannot write to it");
    bth_target_file_free(&target);
    return bth_error_prefix(error, path);
}

/* Pages of the page cache are blocks, too: a write to a part of one writes all of it. */
static uint32_t joint_block_nbytes(const bth_output_file *file)
{
    uint64_t nbytes = (uint64_t)sysconf(_SC_PAGESIZE);

    if (nbytes > BTH_MAX_DIRECT_BLOCK_NBYTES || nbytes < BTH_DIRECT_BLOCK_NBYTES)
        nbytes = BTH_DIRECT_BLOCK_NBYTES;
    if (file->began_direct)
        nbytes = bth_max(nbytes, file->direct.block_nbytes);
    return (uint32_t)nbytes;
}

static int joint_make_identity(uint8_t identity[BTH_JOINT_IDENTITY_NBYTES], berth_error *error)
{
    ssize_t n;

    BTH_REPEAT(n, bth_system.getrandom(identity, BTH_JOINT_IDENTITY_NBYTES, 0));
    if (n != BTH_JOINT_IDENTITY_NBYTES)
        return bth_fail_system(error, n < 0 ? errno : EIO, "no random identity for a save");
    return 0;
}

static int joint_write_ticket(berth_joint *joint, const berth_value *outline, size_t n_writers,
                              berth_error *error)
{
    const bth_operation *operation = &joint->operation;
    char folder[PATH_MAX];
    size_t nbytes;
    bth_ticket ticket = {.n_writers = (uint32_t)n_writers,
                         .block_nbytes = joint_block_nbytes(&operation->file),
                         .compute_crc32 = operation->plan->compute_crc32,
                         .alignment = operation->plan->alignment,
                         .durability = operation->config.save_durability,
                         .file_nbytes = operation->nbytes,
                         .path = operation->path,
                         .folder = folder,
                         .temporary = operation->commit.temporary,
                         .archive = operation->plan->archive};

    if (bth_joint_folder_path(operation->commit.target.folder, folder, error) < 0 ||
        joint_make_identity(ticket.identity, error) < 0 ||
        bth_ticket_write(&ticket, operation->plan, outline, &joint->ticket_bytes, &nbytes, error) <
            0)
        return error->code;
    if (bth_ticket_read(joint->ticket_bytes, nbytes, &joint->ticket, error) < 0)
        return error->code;
    return bth_ticket_check_paths(&joint->ticket, error);
}

static int joint_allocate_receipts(berth_joint *joint, size_t n_writers, berth_error *error)
{
    joint->receipt_bytes =
        bth_allocate_zeroed(bth_array_nbytes(n_writers, sizeof *joint->receipt_bytes));
    joint->receipts = bth_allocate_zeroed(bth_array_nbytes(n_writers, sizeof *joint->receipts));
    if (!joint->receipt_bytes || !joint->receipts)
        return bth_fail_memory(error, bth_array_nbytes(n_writers, sizeof *joint->receipts));
    return 0;
}

static int joint_begin(berth_joint *joint, const char *path, const berth_value *outline,
                       size_t n_writers, const berth_params *params, berth_error *error)
{
    const berth_target target = berth_to_path(path);
    const berth_content content = berth_of_value(outline);
    berth_params own = params ? *params : (berth_params){0};

    own.n_storage_stats = 0; /* it knows only what it writes itself */
    if (bth_operation_begin(&joint->operation, &target, &content, BTH_OPERATION_SHARED, &own,
                            error) < 0 ||
        joint_write_ticket(joint, outline, n_writers, error) < 0 ||
        joint_allocate_receipts(joint, n_writers, error) < 0)
        return error->code;
    return bth_joint_file_seal(joint->operation.commit.fd, joint->ticket.identity, error);
}

int berth_joint_begin(const char *path, const berth_value *outline, size_t n_writers,
                      const berth_params *params, berth_joint **joint, berth_joint_info *info,
                      berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    BTH_HOLD_FILE_LIMIT();
    if (!joint)
        return bth_fail_argument(error, "joint is NULL");
    *joint = NULL;
    if (info)
        *info = (berth_joint_info){0};
    if (n_writers == 0 || n_writers > BERTH_MAX_WRITERS)
        return bth_fail_argument(error, "%zu writers, there can be 1 to %d", n_writers,
                                 BERTH_MAX_WRITERS);
    if (joint_check_target(path, error) < 0)
        return error->code;
    berth_joint *made = bth_allocate_zeroed(sizeof *made);
    if (!made)
        return bth_fail_memory(error, sizeof *made);
    if (joint_begin(made, path, outline, n_writers, params, error) < 0)
        return joint_end(made, error);
    bth_operation_suspend_trace(&made->operation);
    *joint = made;
    if (info)
        *info = (berth_joint_info){.ticket = made->ticket_bytes,
                                   .ticket_nbytes = made->ticket.nbytes,
                                   .nbytes = made->operation.nbytes,
                                   .n_writers = n_writers};
    return 0;
}

/* ---- receipts ---- */

static int joint_add_receipt(berth_joint *joint, const void *bytes, size_t nbytes,
                             berth_error *error)
{
    bth_receipt receipt;

    if (bth_receipt_read(&joint->ticket, bytes, nbytes, &receipt, error) < 0)
        return error->code;
    uint8_t **kept = &joint->receipt_bytes[receipt.writer];
    if (*kept)
        return bth_fail_argument(error, "writer %u has given its receipt already", receipt.writer);
    *kept = bth_allocate(nbytes);
    if (!*kept)
        return bth_fail_memory(error, nbytes);
    memcpy(*kept, bytes, nbytes);
    return bth_receipt_read(&joint->ticket, *kept, nbytes, &joint->receipts[receipt.writer], error);
}

int berth_joint_add_receipt(berth_joint *joint, const void *receipt, size_t nbytes,
                            berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    if (joint_check_process(joint, error) < 0)
        return error->code;
    if (joint_add_receipt(joint, receipt, nbytes, error) < 0)
        return bth_error_prefix(error, joint->operation.path);
    return 0;
}

/* J3 */
static int joint_check_receipts_are_there(const berth_joint *joint, berth_error *error)
{
    for (uint32_t i = 0; i < joint->ticket.n_writers; i++)
        if (!joint->receipt_bytes[i])
            return bth_fail_argument(error, "writer %u of %u has given no receipt", i,
                                     joint->ticket.n_writers);
    return 0;
}

/* ---- the end ---- */

/* J6: whatever fails before the rename leaves the old file. */
static int joint_finish(berth_joint *joint, berth_error *error)
{
    bth_operation *operation = &joint->operation;

    if (joint_check_receipts_are_there(joint, error) < 0 ||
        bth_joint_parts_make(&joint->ticket, joint->receipts, operation->plan, &joint->parts,
                             error) < 0)
        return error->code;
    operation->parts = joint->parts.run;
    if (bth_operation_transfer(operation, error) < 0)
        return error->code;
    return bth_operation_finish(operation, error);
}

int berth_joint_finish(berth_joint *joint, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    BTH_HOLD_FILE_LIMIT();
    int status = joint_check_process(joint, error);
    if (!joint)
        return status;
    bth_operation_resume_trace(&joint->operation);
    if (status == 0)
        (void)joint_finish(joint, error);
    return joint_end(joint, error);
}

void berth_joint_abort(berth_joint *joint)
{
    berth_error ignored;

    BTH_HOLD_CANCEL(true);
    bth_error_clear(&ignored);
    if (joint)
        (void)joint_end(joint, &ignored);
}
