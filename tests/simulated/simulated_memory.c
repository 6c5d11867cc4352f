/* SPDX-License-Identifier: BSD-3-Clause */
/* The simulated devices' memory, and what the host has pinned for them. */
#include <string.h>

#include "io/syscalls.h"
#include "tests/simulated/simulated_inner.h"

#define MAX_RANGES ((size_t)1 << 20)

/* How many ranges begin at or before an address. */
static size_t count_up_to(uintptr_t address)
{
    size_t least = 0, most = bth_simulated.n_ranges;

    while (least < most) {
        size_t middle = least + (most - least) / 2;
        if (bth_simulated.ranges[middle].address <= address)
            least = middle + 1;
        else
            most = middle;
    }
    return least;
}

struct simulated_range *bth_simulated_range_at(uintptr_t address, size_t nbytes)
{
    size_t n = count_up_to(address);

    if (n == 0)
        return NULL;
    struct simulated_range *range = &bth_simulated.ranges[n - 1];
    uintptr_t at = address - range->address;
    return at < range->nbytes && nbytes <= range->nbytes - at ? range : NULL;
}

static void *map(size_t nbytes, int protection)
{
    void *at = bth_system.mmap(NULL, nbytes, protection,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void unmap(void *bytes, size_t nbytes)
{
    if (bytes)
        (void)bth_system.munmap(bytes, nbytes);
}

/* Like a driver's own memory, the table is not the allocator's, and stays. */
static bool has_room(void)
{
    if (!bth_simulated.ranges)
        bth_simulated.ranges =
            map(MAX_RANGES * sizeof *bth_simulated.ranges, PROT_READ | PROT_WRITE);
    return bth_simulated.ranges && bth_simulated.n_ranges < MAX_RANGES;
}

static uint64_t *live_nbytes(const struct simulated_range *range)
{
    return range->is_pinned ? &bth_simulated.live.pinned_nbytes : &bth_simulated.live.memory_nbytes;
}

static int add_range(const struct simulated_range *range)
{
    if (!has_room())
        return SIMULATED_OUT_OF_MEMORY;
    struct simulated_range *at = bth_simulated.ranges + count_up_to(range->address);
    struct simulated_range *end = bth_simulated.ranges + bth_simulated.n_ranges++;
    memmove(at + 1, at, (size_t)((char *)end - (char *)at));
    *at = *range;
    *live_nbytes(range) += range->nbytes;
    return SIMULATED_OK;
}

static void drop_range(struct simulated_range *range)
{
    struct simulated_range *end = bth_simulated.ranges + bth_simulated.n_ranges--;

    *live_nbytes(range) -= range->nbytes;
    memmove(range, range + 1, (size_t)((char *)end - (char *)(range + 1)));
}

/* The addresses are real ones, of pages that nobody may touch; the bytes are elsewhere. */
int bth_simulated_allocate(unsigned ordinal, size_t nbytes, uintptr_t *address)
{
    uint64_t used = bth_simulated.used_nbytes[ordinal];

    if (nbytes > bth_simulated.machine.memory_nbytes ||
        used > bth_simulated.machine.memory_nbytes - nbytes)
        return SIMULATED_OUT_OF_MEMORY;
    void *seen = map(nbytes, PROT_NONE);
    uint8_t *bytes = map(nbytes, PROT_READ | PROT_WRITE);
    struct simulated_range range = {
        .address = (uintptr_t)seen, .nbytes = nbytes, .bytes = bytes, .ordinal = ordinal};
    if (!seen || !bytes || add_range(&range) != SIMULATED_OK) {
        unmap(seen, nbytes);
        unmap(bytes, nbytes);
        return SIMULATED_OUT_OF_MEMORY;
    }
    bth_simulated.used_nbytes[ordinal] = used + nbytes;
    *address = range.address;
    return SIMULATED_OK;
}

static bool can_pin(size_t nbytes)
{
    return nbytes <= bth_simulated.machine.pinned_nbytes &&
           bth_simulated.live.pinned_nbytes <= bth_simulated.machine.pinned_nbytes - nbytes;
}

int bth_simulated_pin(unsigned ordinal, size_t nbytes, void **bytes)
{
    void *at = can_pin(nbytes) ? map(nbytes, PROT_READ | PROT_WRITE) : NULL;
    struct simulated_range range = {.address = (uintptr_t)at,
                                    .nbytes = nbytes,
                                    .bytes = at,
                                    .ordinal = ordinal,
                                    .is_pinned = true};

    if (!at || add_range(&range) != SIMULATED_OK) {
        unmap(at, nbytes);
        return SIMULATED_OUT_OF_MEMORY;
    }
    *bytes = at;
    return SIMULATED_OK;
}

/* Whether anything that the driver knows shares a byte with these. */
static bool overlaps(uintptr_t address, size_t nbytes)
{
    size_t n = count_up_to(address + (nbytes - 1));

    return n > 0 &&
           bth_simulated.ranges[n - 1].address + bth_simulated.ranges[n - 1].nbytes > address;
}

int bth_simulated_register(unsigned ordinal, void *bytes, size_t nbytes)
{
    struct simulated_range range = {.address = (uintptr_t)bytes,
                                    .nbytes = nbytes,
                                    .bytes = bytes,
                                    .ordinal = ordinal,
                                    .is_pinned = true,
                                    .is_registered = true};

    if (bth_simulated.machine.cannot_register)
        return SIMULATED_NOT_SUPPORTED;
    if (!bytes || nbytes == 0 || overlaps(range.address, nbytes))
        return SIMULATED_INVALID_VALUE;
    return can_pin(nbytes) ? add_range(&range) : SIMULATED_OUT_OF_MEMORY;
}

static struct simulated_range *find_start(uintptr_t address, bool is_pinned, bool is_registered)
{
    struct simulated_range *range = bth_simulated_range_at(address, 1);

    return range && range->address == address && range->is_pinned == is_pinned &&
                   range->is_registered == is_registered
               ? range
               : NULL;
}

static void give_up(struct simulated_range *range)
{
    if (!range->is_registered)
        unmap(range->bytes, range->nbytes);
    if (!range->is_pinned) {
        unmap((void *)range->address, range->nbytes);
        bth_simulated.used_nbytes[range->ordinal] -= range->nbytes;
    }
    drop_range(range);
}

void bth_simulated_forget(unsigned ordinal)
{
    for (size_t i = bth_simulated.n_ranges; i-- > 0;)
        if (bth_simulated.ranges[i].ordinal == ordinal)
            give_up(&bth_simulated.ranges[i]);
}

int bth_simulated_free(uintptr_t address, bool is_pinned, bool is_registered)
{
    struct simulated_range *range;

    while ((range = find_start(address, is_pinned, is_registered)) && range->n_copies > 0)
        pthread_cond_wait(&bth_simulated.changed, &bth_simulated.lock.mutex);
    if (!range)
        return SIMULATED_INVALID_VALUE;
    give_up(range);
    return SIMULATED_OK;
}
