/* SPDX-License-Identifier: BSD-3-Clause */
#include "load/transfer/loaded_files.h"

#include <stdatomic.h>
#include <stdint.h>

#include "base/seeded_hash.h"
#include "io/syscalls.h"

#define N_FILES 64

/* Each file's hash is at its own remainder. Two files there replace each other. */
static atomic_uint_fast64_t loaded_files[N_FILES];

static uint64_t file_status_hash(const struct stat *status)
{
    const uint64_t fields[] = {(uint64_t)status->st_dev, (uint64_t)status->st_ino,
                               (uint64_t)status->st_size, (uint64_t)status->st_mtim.tv_sec,
                               (uint64_t)status->st_mtim.tv_nsec};

    uint64_t hash = 0;

    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        hash = bth_hash_mix(hash, fields[i]);
    return hash;
}

bool bth_loaded_files_add(int fd)
{
    struct stat status;

    if (bth_system.fstat(fd, &status) != 0)
        return false;
    uint64_t hash = file_status_hash(&status);
    return atomic_exchange(&loaded_files[hash % N_FILES], hash) == hash;
}
