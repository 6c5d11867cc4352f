/* SPDX-License-Identifier: BSD-3-Clause */
/* The coordinator of a joint save. */
#include "save/joint/joint_ticket.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "io/direct.h"
#include "io/file.h"
#include "io/syscalls.h"
#include "save/save_operation.h"

/* ---- collecting ---- */

static int written_part_compare_offsets(const void *a, const void *b)
{
    const bth_written_part *one = a, *other = b;

    if (one->part.at != other->part.at)
        return one->part.at < other->part.at ? -1 : 1;
    return (one->writer > other->writer) - (one->writer < other->writer);
}

/* Each storage has room for its parts, one storage after the other. */
static int parts_collect(bth_joint_parts *parts, const bth_ticket *ticket,
                         const bth_receipt *receipts, berth_error *error)
{
    for (size_t i = 0; i < ticket->n_writers; i++)
        parts->n_parts += receipts[i].n_parts;
    size_t nbytes = bth_array_nbytes(parts->n_parts + 1, sizeof *parts->parts);
    size_t sources_nbytes =
        bth_array_nbytes(ticket->n_storages + (size_t)1, sizeof *parts->sources);
    parts->parts = bth_allocate_zeroed(nbytes);
    parts->sources = bth_allocate_zeroed(sources_nbytes);
    if (!parts->parts || !parts->sources)
        return bth_fail_memory(error, parts->parts ? sources_nbytes : nbytes);
    for (size_t i = 0; i < ticket->n_writers; i++)
        for (size_t j = 0; j < receipts[i].n_parts; j++)
            parts->sources[bth_receipt_part(&receipts[i], j).storage].n_parts++;
    bth_written_part *at = parts->parts;
    for (size_t i = 0; i < ticket->n_storages; i++) {
        parts->sources[i].ticket = ticket;
        parts->sources[i].parts = at;
        at += parts->sources[i].n_parts;
        parts->sources[i].n_parts = 0;
    }
    for (size_t i = 0; i < ticket->n_writers; i++) {
        const uint8_t *fragment = receipts[i].fragments;
        for (size_t j = 0; j < receipts[i].n_parts; j++) {
            bth_joint_part part = bth_receipt_part(&receipts[i], j);
            bth_joint_split split = bth_joint_part_split(ticket, &part);
            bth_joint_source *source = &parts->sources[part.storage];
            source->parts[source->n_parts++] =
                (bth_written_part){part, receipts[i].writer, fragment};
            fragment += split.head_nbytes + split.tail_nbytes;
        }
    }
    return 0;
}

/* ---- every byte once (J3) ---- */

/* Sorts the parts of each storage. Each begins where the one before ends. The error names the
 * record, and a tensor on it. */
static int parts_sort_and_check(const bth_joint_parts *parts, const bth_ticket *ticket,
                                berth_error *error)
{
    char record[32], what[256];

    for (size_t i = 0; i < ticket->n_storages; i++) {
        bth_written_part *part = parts->sources[i].parts;
        const size_t n = parts->sources[i].n_parts;
        uint64_t at = 0;
        /* Writers have slices in their own order as a rule: then there is nothing to sort. */
        for (size_t j = 1; j < n; j++)
            if (written_part_compare_offsets(&part[j - 1], &part[j]) > 0) {
                qsort(part, n, sizeof *part, written_part_compare_offsets);
                break;
            }
        for (size_t j = 0; j <= n; j++) {
            uint64_t next = j < n ? part[j].part.at : ticket->storages[i].nbytes;
            if (next == at) {
                at += j < n ? part[j].part.nbytes : 0;
                continue;
            }
            if (next > at)
                (void)snprintf(what, sizeof what,
                               "no writer has written its bytes %" PRIu64 " to %" PRIu64, at, next);
            else
                (void)snprintf(what, sizeof what,
                               "writers %u and %u have both written its byte %" PRIu64,
                               part[j - 1].writer, part[j].writer, next);
            (void)snprintf(record, sizeof record, "data/%u", ticket->storages[i].record);
            return bth_fail(error, BERTH_E_ARGUMENT, record, BERTH_NO_OFFSET,
                            "%s (tensor '%.200s')", what, bth_ticket_name_of_storage(ticket, i));
        }
    }
    return 0;
}

/* ---- what is left to write ---- */

/* Bytes of a storage that are in receipts: a read callback of its record. */
static int source_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    const bth_joint_source *source = context;
    size_t low = 0, high = source->n_parts;
    uint8_t *out = buffer;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (source->parts[middle].part.at <= offset)
            low = middle;
        else
            high = middle;
    }
    for (const bth_written_part *part = &source->parts[low]; nbytes > 0; part++) {
        bth_joint_split split = bth_joint_part_split(source->ticket, &part->part);
        uint64_t at = offset - part->part.at, middle_nbytes = split.middle.nbytes;
        bool is_head = at < split.head_nbytes;
        if (!is_head && at < split.head_nbytes + middle_nbytes)
            return EIO; /* a middle, which is in no range */
        uint64_t rest = (is_head ? split.head_nbytes : part->part.nbytes) - at;
        size_t n = (size_t)bth_min(rest, nbytes);
        memcpy(out, part->fragments + (is_head ? at : at - middle_nbytes), n);
        out += n;
        offset += n;
        nbytes -= n;
    }
    return 0;
}

/* In the file's order, as the storages of the ticket are. Between chained parts there is no range.
 */
static int parts_set_contents(bth_joint_parts *parts, berth_plan *plan, berth_error *error)
{
    bth_run_parts *run = &parts->run;
    uint64_t at = 0; /* where the range before ends */
    size_t storage = 0, n = parts->n_parts + 1;

    parts->present = bth_allocate(bth_array_nbytes(n, sizeof *parts->present));
    parts->ranges = bth_allocate(bth_array_nbytes(n, sizeof *parts->ranges));
    if (!parts->present || !parts->ranges)
        return bth_fail_memory(error, bth_array_nbytes(n, sizeof *parts->present));
    *run = (bth_run_parts){.ranges = parts->ranges, .present = parts->present};
    for (size_t i = 0; i < plan->n_records; i++) {
        if (!bth_plan_record_is_elsewhere(plan, i))
            continue;
        bth_joint_source *source = &parts->sources[storage++];
        for (size_t j = 0; j < source->n_parts; j++) {
            const bth_joint_part *part = &source->parts[j].part;
            bth_range middle = bth_joint_part_split(source->ticket, part).middle;
            if (middle.nbytes == 0)
                continue;
            bth_present *present = &parts->present[run->n_present++];
            *present = (bth_present){.record = i, .range = middle, .crc32 = part->crc32};
            memcpy(present->start, part->start, sizeof part->start);
            if (part->is_chained_before)
                present->before_nbytes = middle.offset - at;
            else if (middle.offset > at)
                parts->ranges[run->n_ranges++] = (bth_range){at, middle.offset - at};
            at = middle.offset + middle.nbytes;
        }
        plan->records[i].storage = NULL;
        plan->records[i].read = source_read;
        plan->records[i].context = source;
        plan->records[i].swap_nbytes = 1; /* the writers have done that */
    }
    parts->ranges[run->n_ranges++] = (bth_range){at, plan->tail_offset - at};
    return 0;
}

int bth_joint_parts_make(const bth_ticket *ticket, const bth_receipt *receipts, berth_plan *plan,
                         bth_joint_parts *parts, berth_error *error)
{
    *parts = (bth_joint_parts){0};
    if (parts_collect(parts, ticket, receipts, error) < 0)
        return error->code;
    assert(parts->parts && parts->sources);
    if (parts_sort_and_check(parts, ticket, error) < 0)
        return error->code;
    return parts_set_contents(parts, plan, error);
}

void bth_joint_parts_free_all(bth_joint_parts *parts)
{
    bth_release(parts->parts);
    bth_release(parts->sources);
    bth_release(parts->present);
    bth_release(parts->ranges);
}

struct berth_joint {
    bth_operation operation;
    uint8_t *ticket_bytes;
    bth_ticket ticket;       /* as a writer reads it */
    uint8_t **receipt_bytes; /* one a writer; NULL: none yet */
    bth_receipt *receipts;
    bth_joint_parts parts;
    uint64_t process; /* that began it */
    /* Of an object: */
    char *name;
    bth_joint_rest *rest; /* what is not the writers' */
    size_t n_rest;
    uint8_t *rest_bytes; /* of those ranges that lie in no memory of the caller */
};

/* X11: in a child of fork, the file is its parent's. */
static int joint_check_process(const berth_joint *joint, berth_error *error)
{
    if (!joint)
        return bth_fail_argument(error, "the joint save is NULL");
    return joint->process == bth_process_unique_number() ? 0 : bth_fail_forked(error, "joint save");
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
    bth_release(joint->name);
    bth_release(joint->rest);
    bth_release(joint->rest_bytes);
    bth_release(joint);
    return status;
}

/* ---- begin ---- */

static int joint_write_ticket(berth_joint *joint, const berth_value *outline, size_t n_writers,
                              berth_error *error)
{
    const bth_operation *operation = &joint->operation;
    const bth_output_file *file = &operation->file;
    /* Pages of the page cache are blocks, too: a write to a part of one writes all of it. */
    uint64_t block_nbytes = (uint64_t)sysconf(_SC_PAGESIZE);
    char folder[PATH_MAX] = "", link[BTH_FILE_PATH_NBYTES];
    size_t nbytes;
    ssize_t n = 0;

    if (!joint->name)
        n = bth_system.readlinkat(AT_FDCWD,
                                  bth_file_proc_path(operation->commit.target.folder, link), folder,
                                  PATH_MAX - 1);

    if (block_nbytes > BTH_MAX_DIRECT_BLOCK_NBYTES || block_nbytes < BTH_DIRECT_BLOCK_NBYTES)
        block_nbytes = BTH_DIRECT_BLOCK_NBYTES;
    if (file->began_direct)
        block_nbytes = bth_max(block_nbytes, file->direct.block_nbytes);
    bth_ticket ticket = {.n_writers = (uint32_t)n_writers,
                         .block_nbytes = (uint32_t)block_nbytes,
                         .compute_crc32 = operation->plan->compute_crc32,
                         .alignment = operation->plan->alignment,
                         .durability = operation->config.save_durability,
                         .file_nbytes = operation->nbytes,
                         .path = joint->name ? joint->name : operation->path,
                         .folder = folder,
                         .temporary = operation->commit.temporary,
                         .archive = operation->plan->archive};
    if (n < 0)
        return bth_fail_system(error, errno, "the path of its folder cannot be found");
    folder[n] = '\0';
    if (!joint->name && folder[0] != '/')
        return bth_fail_argument(error, "its folder has no path");
    BTH_REPEAT(n, bth_system.getrandom(ticket.identity, sizeof ticket.identity, 0));
    if (n != (ssize_t)sizeof ticket.identity)
        return bth_fail_system(error, n < 0 ? errno : EIO, "no random identity for a save");
    if (bth_ticket_write(&ticket, operation->plan, outline, &joint->ticket_bytes, &nbytes, error) <
            0 ||
        bth_ticket_read(joint->ticket_bytes, nbytes, &joint->ticket, error) < 0)
        return error->code;
    return bth_ticket_check_paths(&joint->ticket, error);
}

/* The checks that a file and an object have in common; *made is to be begun. */
static int joint_new(const char *path, size_t n_writers, berth_joint **joint,
                     berth_joint_info *info, berth_joint **made, berth_error *error)
{
    if (!joint)
        return bth_fail_argument(error, "joint is NULL");
    *joint = NULL;
    if (info)
        *info = (berth_joint_info){0};
    if (n_writers == 0 || n_writers > BERTH_MAX_WRITERS)
        return bth_fail_argument(error, "%zu writers, there can be 1 to %d", n_writers,
                                 BERTH_MAX_WRITERS);
    if (!path)
        return bth_fail_argument(error, "the path is NULL");
    *made = bth_allocate_zeroed(sizeof **made);
    if (!*made)
        return bth_fail_memory(error, sizeof **made);
    (*made)->process = bth_process_unique_number();
    return 0;
}

/* It is begun, or has failed. */
static int joint_give(berth_joint *made, berth_joint **joint, berth_joint_info *info,
                      berth_error *error)
{
    if (error->code != BERTH_OK)
        return joint_end(made, error);
    bth_trace_leave(&made->operation.traced, bth_trace_seconds(), NULL, NULL);
    *joint = made;
    if (info)
        *info = (berth_joint_info){.ticket = made->ticket_bytes,
                                   .ticket_nbytes = made->ticket.nbytes,
                                   .nbytes = made->operation.nbytes,
                                   .n_writers = made->ticket.n_writers};
    return 0;
}

int berth_joint_begin(const char *path, const berth_value *outline, size_t n_writers,
                      const berth_params *params, berth_joint **joint, berth_joint_info *info,
                      berth_error *error)
{
    const berth_target target = berth_to_path(path);
    const berth_content content = berth_of_value(outline);
    berth_params own = params ? *params : (berth_params){0};
    bth_target_file found = BTH_NO_TARGET_FILE;
    berth_joint *made = NULL;

    BTH_ERROR_BEGIN(error);
    BTH_HOLD_FILE_LIMIT();
    if (joint_new(path, n_writers, joint, info, &made, error) < 0)
        return error->code;
    /* X4: refused before its old content is lost. */
    if (bth_target_file_find(path, false, &found, error) == 0 && found.nameless >= 0)
        (void)bth_fail_argument(error, "it has no name, so other processes cannot write to it");
    bth_target_file_free(&found);
    if (bth_error_prefix(error, path) < 0) {
        bth_release(made);
        return error->code;
    }
    own.n_storage_stats = 0; /* it knows only what it writes itself */
    if (bth_operation_begin(&made->operation, &target, &content, BTH_OPERATION_SHARED, &own,
                            error) == 0 &&
        joint_write_ticket(made, outline, n_writers, error) == 0) {
        size_t nbytes = bth_array_nbytes(n_writers, sizeof *made->receipts);
        made->receipts = bth_allocate_zeroed(nbytes);
        made->receipt_bytes =
            bth_allocate_zeroed(bth_array_nbytes(n_writers, sizeof *made->receipt_bytes));
        if (!made->receipt_bytes || !made->receipts)
            (void)bth_fail_memory(error, nbytes);
        else
            (void)bth_joint_file_seal(made->operation.commit.fd, made->ticket.identity, error);
    }
    return joint_give(made, joint, info, error);
}

/* ---- an object ---- */

/* Of a target that only names the archive. */
static int nowhere_write(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context, (void)buffer, (void)nbytes, (void)offset;
    return EIO;
}

int berth_joint_begin_object(const char *name, const berth_value *outline, size_t n_writers,
                             const berth_params *params, berth_joint **joint,
                             berth_joint_info *info, berth_error *error)
{
    const berth_content content = berth_of_value(outline);
    const berth_sink nowhere = {.write = nowhere_write};
    berth_target target = berth_to_sink(&nowhere);
    berth_params own = params ? *params : (berth_params){0};
    berth_joint *made = NULL;

    BTH_ERROR_BEGIN(error);
    if (joint_new(name, n_writers, joint, info, &made, error) < 0)
        return error->code;
    own.n_storage_stats = 0;
    own.progress = NULL; /* that of berth_joint_send counts */
    target.path = name;
    made->name = bth_duplicate_text(name, strlen(name));
    if (!made->name)
        (void)bth_fail_memory(error, strlen(name));
    if (error->code == BERTH_OK && bth_operation_begin(&made->operation, &target, &content,
                                                       BTH_OPERATION_SHARED, &own, error) == 0)
        (void)joint_write_ticket(made, outline, n_writers, error);
    made->operation.config.debug = false; /* nothing can be read back */
    (void)bth_error_prefix(error, name);
    return joint_give(made, joint, info, error);
}

/* Smaller ones are copied: a range costs as much. */
#define MIN_LENT_NBYTES 4096

/* The bytes of a record that lie in the caller's memory as in the file; NULL: they do not. */
static const uint8_t *record_find_bytes(const bth_plan_record *record)
{
    uint64_t at = 0;

    if (record->swap_nbytes > 1 || record->device || record->layout.nbytes < MIN_LENT_NBYTES)
        return NULL;
    if (!record->storage)
        return record->data;
    const berth_storage *bottom = bth_storage_resolve_view(record->storage, &at);
    return bottom->data && !bottom->device ? (const uint8_t *)bottom->data + at : NULL;
}

static void rest_add(berth_joint *joint, uint64_t begin, uint64_t end, const uint8_t *bytes)
{
    if (begin < end)
        joint->rest[joint->n_rest++] = (bth_joint_rest){{begin, end - begin}, bytes, bytes != NULL};
}

static int nobody_reads(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context, (void)buffer, (void)nbytes, (void)offset;
    return EIO; /* what the writers have is in no range */
}

/* The ranges of the rest; what is written of the plan, and what is present in it: the storages of
 * the ticket, which then have no bytes here. */
static int joint_divide(berth_joint *joint, const bth_ticket *ticket, const bth_joint_sum *sums,
                        berth_error *error)
{
    berth_plan *plan = joint->operation.plan;
    bth_joint_parts *parts = &joint->parts;
    const size_t n = plan->n_records + 1;
    uint64_t at = 0, written = 0, kept_nbytes = 0;
    size_t storage = 0;

    joint->rest = bth_allocate_zeroed(bth_array_nbytes(2 * n, sizeof *joint->rest));
    parts->present = bth_allocate(bth_array_nbytes(n, sizeof *parts->present));
    parts->ranges = bth_allocate(bth_array_nbytes(n, sizeof *parts->ranges));
    if (!joint->rest || !parts->present || !parts->ranges)
        return bth_fail_memory(error, bth_array_nbytes(2 * n, sizeof *joint->rest));
    bth_run_parts *run = &joint->operation.parts;
    *run = (bth_run_parts){.ranges = parts->ranges, .present = parts->present};
    for (size_t i = 0; i < plan->n_records; i++) {
        bth_plan_record *record = &plan->records[i];
        const bth_range data = bth_plan_data_range(plan, i);
        const bool is_elsewhere = bth_plan_record_is_elsewhere(plan, i);
        const uint8_t *bytes = is_elsewhere ? NULL : record_find_bytes(record);
        if (!is_elsewhere && !bytes)
            continue;
        rest_add(joint, at, data.offset, NULL);
        rest_add(joint, data.offset, is_elsewhere ? data.offset : data.offset + data.nbytes, bytes);
        at = data.offset + data.nbytes;
        if (!is_elsewhere)
            continue;
        if (storage == ticket->n_storages) /* it is another ticket than that of this save */
            return bth_fail_argument(error, "the ticket is of another save");
        bth_present *present = &parts->present[run->n_present++];
        *present = (bth_present){.record = i, .range = data, .crc32 = sums[storage].crc32};
        memcpy(present->start, sums[storage++].start, sizeof present->start);
        parts->ranges[run->n_ranges++] = (bth_range){written, data.offset - written};
        written = at;
        record->storage = NULL;
        record->read = nobody_reads;
        record->swap_nbytes = 1;
    }
    rest_add(joint, at, plan->nbytes, NULL);
    parts->ranges[run->n_ranges++] = (bth_range){written, plan->tail_offset - written};
    for (size_t i = 0; i < joint->n_rest; i++)
        kept_nbytes += joint->rest[i].is_lent ? 0 : joint->rest[i].range.nbytes;
    joint->rest_bytes = kept_nbytes <= SIZE_MAX ? bth_allocate((size_t)kept_nbytes) : NULL;
    if (!joint->rest_bytes)
        return bth_fail_memory(error, kept_nbytes);
    const uint8_t *next = joint->rest_bytes;
    for (size_t i = 0; i < joint->n_rest; i++)
        if (!joint->rest[i].is_lent) {
            joint->rest[i].bytes = next;
            next += joint->rest[i].range.nbytes;
        }
    return 0;
}

/* A write of an output: keeps what goes to ranges of the rest that have no memory of the caller. */
static int rest_write(void *context, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                      berth_error *error)
{
    const berth_joint *joint = context;
    const uint8_t *from = pieces->iov_base;
    uint64_t end = offset + pieces->iov_len;
    size_t low = 0, high = joint->n_rest;

    assert(n_pieces == 1); /* there are no zero-copy ranges */
    (void)n_pieces, (void)error;
    while (low < high) { /* the first range that ends behind */
        size_t middle = low + (high - low) / 2;
        const bth_range *range = &joint->rest[middle].range;
        if (range->offset + range->nbytes > offset)
            high = middle;
        else
            low = middle + 1;
    }
    for (; low < joint->n_rest && joint->rest[low].range.offset < end; low++) {
        const bth_joint_rest *rest = &joint->rest[low];
        uint64_t at = bth_max(rest->range.offset, offset);
        uint64_t n = bth_min(rest->range.offset + rest->range.nbytes, end) - at;
        if (!rest->is_lent)
            memcpy((uint8_t *)(uintptr_t)rest->bytes + (at - rest->range.offset),
                   from + (at - offset), (size_t)n);
    }
    return 0;
}
int bth_joint_render_rest(berth_joint *joint, const bth_ticket *ticket, const bth_joint_sum *sums,
                          const bth_joint_rest **rest, size_t *n, berth_error *error)
{
    if (joint_check_process(joint, error) < 0)
        return error->code;
    if (!joint->name || joint->rest ||
        memcmp(joint->ticket.identity, ticket->identity, sizeof ticket->identity) != 0)
        return bth_fail_argument(error, "this joint save is of no object, or of another ticket, or "
                                        "it was sent already");
    bth_operation_resume_trace(&joint->operation);
    if (joint_divide(joint, ticket, sums, error) == 0) {
        joint->operation.output =
            (bth_output){.write = rest_write, .context = joint, .reason = "an object"};
        (void)bth_operation_transfer(&joint->operation, error);
    }
    bth_trace_leave(&joint->operation.traced, bth_trace_seconds(), NULL, NULL);
    *rest = joint->rest;
    *n = joint->n_rest;
    return error->code;
}

/* ---- receipts ---- */

int berth_joint_add_receipt(berth_joint *joint, const void *receipt, size_t nbytes,
                            berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    bth_receipt found;

    if (joint_check_process(joint, error) < 0)
        return error->code;
    if (joint->name)
        return bth_fail_argument(error, "it is of an object, which has no receipts");
    if (bth_receipt_read(&joint->ticket, receipt, nbytes, &found, error) == 0) {
        uint8_t **kept = &joint->receipt_bytes[found.writer];
        if (*kept)
            (void)bth_fail_argument(error, "writer %u has given its receipt already", found.writer);
        else if (!(*kept = bth_allocate(nbytes)))
            (void)bth_fail_memory(error, nbytes);
        else { /* another process may change the caller's bytes: the copy is checked, too */
            memcpy(*kept, receipt, nbytes);
            (void)bth_receipt_read(&joint->ticket, *kept, nbytes, &joint->receipts[found.writer],
                                   error);
        }
    }
    return bth_error_prefix(error, joint->operation.path);
}

/* ---- the end ---- */

/* J3: each writer has given its receipt, and each byte is in just one. J6: whatever fails before
 * the rename leaves the old file. */
int berth_joint_finish(berth_joint *joint, berth_error *error)
{
    BTH_ERROR_BEGIN(error);
    BTH_HOLD_FILE_LIMIT();
    int status = joint_check_process(joint, error);

    if (!joint)
        return status;
    if (error->code == BERTH_OK && joint->name)
        (void)bth_fail_argument(error, "it is of an object, which has no receipts");
    bth_operation *operation = &joint->operation;
    const bth_ticket *ticket = &joint->ticket;
    bth_operation_resume_trace(operation);
    for (uint32_t i = 0; i < ticket->n_writers && error->code == BERTH_OK; i++)
        if (!joint->receipt_bytes[i])
            (void)bth_fail_argument(error, "writer %u of %u has given no receipt", i,
                                    ticket->n_writers);
    if (error->code == BERTH_OK &&
        bth_joint_parts_make(ticket, joint->receipts, operation->plan, &joint->parts, error) == 0) {
        operation->parts = joint->parts.run;
        if (bth_operation_transfer(operation, error) == 0)
            (void)bth_operation_finish(operation, error);
    }
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
