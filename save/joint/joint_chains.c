/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/joint/joint_chains.h"

/* Whether the part would have a middle as the first of a chain, or as the last one. */
static bool part_has_middle(const bth_ticket *ticket, bth_joint_part part, bool is_first)
{
    part.is_chained_behind = is_first;
    part.is_chained_before = !is_first;
    return bth_joint_part_split(ticket, &part).middle.nbytes > 0;
}

/* Parts 0 to `last` are neighbours. */
static void chain_make(const bth_ticket *ticket, bth_slice_part *parts, size_t last)
{
    size_t first = 0;

    while (first < last && !part_has_middle(ticket, parts[first].part, true))
        first++;
    while (first < last && !part_has_middle(ticket, parts[last].part, false))
        last--;
    for (size_t i = first; i < last; i++) {
        parts[i].part.is_chained_behind = 1;
        parts[i + 1].part.is_chained_before = 1;
    }
}

void bth_chains_make(const bth_ticket *ticket, bth_slice_parts *parts)
{
    for (size_t first = 0, last; first < parts->n; first = last + 1) {
        last = first;
        while (last + 1 < parts->n &&
               bth_joint_parts_are_neighbours(ticket, &parts->parts[last].part,
                                              &parts->parts[last + 1].part))
            last++;
        chain_make(ticket, parts->parts + first, last - first);
    }
}
