/* SPDX-License-Identifier: BSD-3-Clause */
/* The ends of a writer's parts: those between neighbours, which it writes itself, and those that
 * are exchanged. */
#include "base/error.h"
#include "base/memory.h"
#include "save/joint/joint_slices.h"

/* ---- chains ---- */

/* Whether the part would have a middle as the first of a chain, or as the last one. */
static bool part_has_middle(const bth_ticket *ticket, bth_joint_part part, bool is_first)
{
    part.is_chained_behind = is_first;
    part.is_chained_before = !is_first;
    return bth_joint_part_split(ticket, &part).middle.nbytes > 0;
}

void bth_chains_make(const bth_ticket *ticket, bth_slice_parts *parts)
{
    bth_slice_part *part = parts->parts;

    for (size_t first = 0, behind; first < parts->n; first = behind) {
        size_t last = first;
        while (last + 1 < parts->n &&
               bth_joint_parts_are_neighbours(ticket, &part[last].part, &part[last + 1].part))
            last++;
        behind = last + 1;
        while (first < last && !part_has_middle(ticket, part[first].part, true))
            first++;
        while (first < last && !part_has_middle(ticket, part[last].part, false))
            last--;
        for (; first < last; first++) {
            part[first].part.is_chained_behind = 1;
            part[first + 1].part.is_chained_before = 1;
        }
    }
}

/* ---- fragments ---- */

/* What is exchanged of a part: so many bytes at its begin, and at its end. */
typedef struct part_ends {
    uint64_t head_nbytes;
    uint64_t tail_nbytes;
} part_ends;

/* J1, J2: only from blocks that lie in the storage as a whole. No offset is near 2^64: the ticket's
 * file has less than 2^63 bytes. */
static part_ends part_find_ends(const bth_ticket *ticket, const bth_joint_part *part)
{
    const bth_ticket_storage *storage = &ticket->storages[part->storage];
    uint64_t mask = ticket->block_nbytes - 1;
    uint64_t first = (storage->data_offset + mask) & ~mask;
    uint64_t behind = (storage->data_offset + storage->nbytes) & ~mask;
    uint64_t begin = storage->data_offset + part->at, end = begin + part->nbytes;
    part_ends ends = {0};

    if (begin >= first && begin < behind)
        ends.head_nbytes = bth_min((begin + mask) & ~mask, end) - begin;
    if (end > first && end <= behind)
        ends.tail_nbytes = end - bth_max(end & ~mask, begin + ends.head_nbytes);
    return ends;
}

uint64_t bth_fragments_count_nbytes(const bth_ticket *ticket, const bth_slice_parts *parts)
{
    uint64_t nbytes = 0;

    for (size_t i = 0; i < parts->n; i++) {
        part_ends ends = part_find_ends(ticket, &parts->parts[i].part);
        nbytes += ends.head_nbytes + ends.tail_nbytes;
    }
    return nbytes;
}

/* Bytes [from, from + nbytes) of a part. There is room. */
static void fragments_add(bth_slice_parts *parts, const bth_slice_part *whole, uint64_t from,
                          uint64_t nbytes)
{
    bth_slice_part *added = &parts->fragments[parts->n_fragments];

    if (nbytes == 0)
        return;
    *added = (bth_slice_part){
        .part = {.storage = whole->part.storage, .at = whole->part.at + from, .nbytes = nbytes},
        .bytes = whole->bytes + from};
    parts->n_fragments++;
}

int bth_fragments_take(const bth_ticket *ticket, bth_slice_parts *parts, berth_error *error)
{
    size_t nbytes = bth_array_nbytes(2 * parts->n + 1, sizeof *parts->fragments), n = 0;

    parts->fragments = bth_allocate(nbytes);
    if (!parts->fragments)
        return bth_fail_memory(error, nbytes);
    for (size_t i = 0; i < parts->n; i++) {
        bth_slice_part *part = &parts->parts[i];
        part_ends ends = part_find_ends(ticket, &part->part);
        uint64_t left = part->part.nbytes - ends.head_nbytes - ends.tail_nbytes;
        fragments_add(parts, part, 0, ends.head_nbytes);
        fragments_add(parts, part, part->part.nbytes - ends.tail_nbytes, ends.tail_nbytes);
        part->part.at += ends.head_nbytes;
        part->part.nbytes = left;
        part->bytes += ends.head_nbytes;
        if (left > 0)
            parts->parts[n++] = *part;
    }
    parts->n = n;
    return 0;
}
