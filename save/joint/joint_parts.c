/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/joint/joint_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

/* ---- collecting ---- */

static int parts_allocate(bth_joint_parts *parts, const bth_ticket *ticket,
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
    return 0;
}

/* Room for the parts of each storage, one storage after the other. None is there yet. */
static void parts_give_room_to_storages(bth_joint_parts *parts, const bth_ticket *ticket,
                                        const bth_receipt *receipts)
{
    bth_written_part *at = parts->parts;

    for (size_t i = 0; i < ticket->n_writers; i++)
        for (size_t j = 0; j < receipts[i].n_parts; j++)
            parts->sources[bth_receipt_part(&receipts[i], j).storage].n_parts++;
    for (size_t i = 0; i < ticket->n_storages; i++) {
        parts->sources[i].ticket = ticket;
        parts->sources[i].parts = at;
        at += parts->sources[i].n_parts;
        parts->sources[i].n_parts = 0;
    }
}

static void parts_add_receipt(bth_joint_parts *parts, const bth_ticket *ticket,
                              const bth_receipt *receipt)
{
    const uint8_t *fragment = receipt->fragments;

    for (size_t i = 0; i < receipt->n_parts; i++) {
        bth_joint_part part = bth_receipt_part(receipt, i);
        bth_joint_split split = bth_joint_part_split(ticket, &part);
        bth_joint_source *source = &parts->sources[part.storage];
        source->parts[source->n_parts++] = (bth_written_part){part, receipt->writer, fragment};
        fragment += split.head_nbytes + split.tail_nbytes;
    }
}

static int written_part_compare(const void *a, const void *b)
{
    const bth_written_part *one = a, *other = b;

    if (one->part.at != other->part.at)
        return one->part.at < other->part.at ? -1 : 1;
    return (one->writer > other->writer) - (one->writer < other->writer);
}

/* Writers have slices in their own order as a rule: then there is nothing to sort. */
static void source_sort(const bth_joint_source *source)
{
    for (size_t i = 1; i < source->n_parts; i++)
        if (written_part_compare(&source->parts[i - 1], &source->parts[i]) > 0) {
            qsort(source->parts, source->n_parts, sizeof *source->parts, written_part_compare);
            return;
        }
}

static int parts_collect(bth_joint_parts *parts, const bth_ticket *ticket,
                         const bth_receipt *receipts, berth_error *error)
{
    if (parts_allocate(parts, ticket, receipts, error) < 0)
        return error->code;
    parts_give_room_to_storages(parts, ticket, receipts);
    for (size_t i = 0; i < ticket->n_writers; i++)
        parts_add_receipt(parts, ticket, &receipts[i]);
    for (size_t i = 0; i < ticket->n_storages; i++)
        source_sort(&parts->sources[i]);
    return 0;
}

/* ---- every byte once (J3) ---- */

static int parts_fail(const bth_ticket *ticket, size_t storage, berth_error *error,
                      const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The record is named, and a tensor on it. */
static int parts_fail(const bth_ticket *ticket, size_t storage, berth_error *error,
                      const char *format, ...)
{
    char record[32], what[256];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    (void)snprintf(record, sizeof record, "data/%u", ticket->storages[storage].record);
    return bth_fail(error, BERTH_E_ARGUMENT, record, BERTH_NO_OFFSET, "%s (tensor '%.200s')", what,
                    bth_ticket_name_of_storage(ticket, storage));
}

static int parts_fail_missing(const bth_ticket *ticket, size_t storage, uint64_t begin,
                              uint64_t end, berth_error *error)
{
    return parts_fail(ticket, storage, error,
                      "no writer has written its bytes %" PRIu64 " to %" PRIu64, begin, end);
}

/* Part i, and all before it, begin where the one before ends. */
static int parts_check_storage(const bth_joint_parts *parts, const bth_ticket *ticket,
                               size_t storage, berth_error *error)
{
    const bth_joint_source *source = &parts->sources[storage];
    uint64_t at = 0, nbytes = ticket->storages[storage].nbytes;

    for (size_t i = 0; i < source->n_parts; i++) {
        const bth_written_part *part = &source->parts[i];
        if (part->part.at > at)
            return parts_fail_missing(ticket, storage, at, part->part.at, error);
        if (part->part.at < at)
            return parts_fail(ticket, storage, error,
                              "writers %u and %u have both written its byte %" PRIu64,
                              part[-1].writer, part->writer, part->part.at);
        at += part->part.nbytes;
    }
    return at == nbytes ? 0 : parts_fail_missing(ticket, storage, at, nbytes, error);
}

static int parts_check_storages(const bth_joint_parts *parts, const bth_ticket *ticket,
                                berth_error *error)
{
    for (size_t i = 0; i < ticket->n_storages; i++)
        if (parts_check_storage(parts, ticket, i, error) < 0)
            return error->code;
    return 0;
}

/* ---- what is left to write ---- */

static int parts_allocate_ranges(bth_joint_parts *parts, berth_error *error)
{
    size_t n = parts->n_parts + 1;

    parts->present = bth_allocate(bth_array_nbytes(n, sizeof *parts->present));
    parts->ranges = bth_allocate(bth_array_nbytes(n, sizeof *parts->ranges));
    if (!parts->present || !parts->ranges)
        return bth_fail_memory(error, bth_array_nbytes(n, sizeof *parts->present));
    parts->run = (bth_run_parts){.ranges = parts->ranges, .present = parts->present};
    return 0;
}

/* `at`: where the range before ends. Between chained parts there is no range. */
static void parts_add_present(bth_joint_parts *parts, const bth_ticket *ticket,
                              const bth_written_part *part, size_t record, uint64_t *at)
{
    bth_range middle = bth_joint_part_split(ticket, &part->part).middle;

    if (middle.nbytes == 0)
        return;
    bth_present *present = &parts->present[parts->run.n_present++];
    *present = (bth_present){.record = record, .range = middle, .crc32 = part->part.crc32};
    memcpy(present->start, part->part.start, sizeof part->part.start);
    if (part->part.is_chained_before)
        present->before_nbytes = middle.offset - *at;
    else if (middle.offset > *at)
        parts->ranges[parts->run.n_ranges++] = (bth_range){*at, middle.offset - *at};
    *at = middle.offset + middle.nbytes;
}

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

/* In the file's order, as the storages of the ticket are. */
static int parts_set_contents(bth_joint_parts *parts, berth_plan *plan, berth_error *error)
{
    uint64_t at = 0;
    size_t storage = 0;

    if (parts_allocate_ranges(parts, error) < 0)
        return error->code;
    for (size_t i = 0; i < plan->n_records; i++) {
        if (!bth_plan_record_is_elsewhere(plan, i))
            continue;
        bth_joint_source *source = &parts->sources[storage++];
        for (size_t j = 0; j < source->n_parts; j++)
            parts_add_present(parts, source->ticket, &source->parts[j], i, &at);
        plan->records[i].storage = NULL;
        plan->records[i].read = source_read;
        plan->records[i].context = source;
        plan->records[i].swap_nbytes = 1; /* the writers have done that */
    }
    parts->ranges[parts->run.n_ranges++] = (bth_range){at, plan->tail_offset - at};
    return 0;
}

int bth_joint_parts_make(const bth_ticket *ticket, const bth_receipt *receipts, berth_plan *plan,
                         bth_joint_parts *parts, berth_error *error)
{
    *parts = (bth_joint_parts){0};
    if (parts_collect(parts, ticket, receipts, error) < 0 ||
        parts_check_storages(parts, ticket, error) < 0)
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
