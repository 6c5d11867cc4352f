/* SPDX-License-Identifier: BSD-3-Clause */
#include <berth/config.h>

#include "tests/support/save/records.h"

uint8_t *sample_bytes(size_t nbytes)
{
    uint8_t *bytes = malloc(nbytes + 1);
    uint32_t state = 12345;

    if (!bytes)
        test_give_up("out of memory");
    for (size_t i = 0; i < nbytes; i++) {
        state = state * 1664525 + 1013904223;
        bytes[i] = (uint8_t)(state >> 24);
    }
    return bytes;
}

char *temporary_path(const char *folder, const char *target, int slot)
{
    char name[BTH_TEMPORARY_NAME_NBYTES];
    uint64_t hash = bth_fnv_update(BTH_FNV_BEGIN, target, strlen(target));

    snprintf(name, sizeof name, ".berth-%016llx-%d.tmp", (unsigned long long)hash, slot);
    return test_path(folder, name);
}

void leave_temporary(const char *path)
{
    char owner[BTH_TEMPORARY_OWNER_NBYTES];

    test_write_file(path, "half a checkpoint", 17);
    cr_assert(bth_temporary_owner_self(owner));
    strcpy(strrchr(owner, ' '), " 1");
    cr_assert_eq(setxattr(path, BTH_TEMPORARY_OWNER, owner, strlen(owner), 0), 0, "%s",
                 strerror(errno));
}

void sample_records(const uint8_t *bytes, berth_new_record records[N_SAMPLES])
{
    static const struct {
        const char *name;
        size_t nbytes;
    } samples[N_SAMPLES] = {{"data.pkl", 77},  {"data/0", 1000}, {"data/1", 0},
                            {"data/2", 1},     {"data/3", 63},   {"data/4", 64},
                            {"data/5", 20000}, {"data/6", 0},    {"data/7", 4097}};

    for (size_t i = 0; i < N_SAMPLES; i++)
        records[i] = (berth_new_record){
            .name = samples[i].name, .nbytes = samples[i].nbytes, .data = bytes + i * 13};
}

void compose(composed *file, const berth_new_record *records, size_t n_records, uint32_t alignment,
             bool compute_crc32)
{
    struct record plain[COMPOSED_MAX_RECORDS];

    for (size_t i = 0; i < n_records; i++)
        plain[i] = (struct record){records[i].name, records[i].data, records[i].nbytes};
    compose_archive(file, "archive/", plain, n_records, alignment, compute_crc32, NULL);
}

struct berth_config config_of(const char *assignments)
{
    struct berth_config config;
    berth_error error;

    bth_error_clear(&error);
    assert_ok(berth_config_patch(assignments, &error));
    assert_ok(bth_config_copy_for_operation(NULL, &config, &error));
    berth_config_unpatch(&error);
    return config;
}
