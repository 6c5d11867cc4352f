/* SPDX-License-Identifier: BSD-3-Clause */
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
    uint64_t hash = bth_fnv(BTH_FNV_BEGIN, target, strlen(target));

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

static uint8_t *grow(composed *file, size_t nbytes)
{
    file->bytes = realloc(file->bytes, file->nbytes + nbytes + 1);
    if (!file->bytes)
        test_give_up("out of memory");
    file->nbytes += nbytes;
    return file->bytes + file->nbytes - nbytes;
}

void compose(composed *file, const berth_new_record *records, size_t n_records, uint32_t alignment,
             bool compute_crc32)
{
    char name[256];

    *file = (composed){.n_records = n_records};
    for (size_t i = 0; i < n_records; i++) {
        bth_place *place = &file->places[i];
        snprintf(name, sizeof name, "archive/%s", records[i].name);
        if (bth_layout_place(file->nbytes, strlen(name), records[i].nbytes, alignment, place) < 0)
            test_give_up("%s has no place", name);
        file->sums[i] =
            compute_crc32 ? bth_crc32(0, records[i].data, (size_t)records[i].nbytes) : 0;
        bth_zip_write_local(place, name, grow(file, place->data_offset - place->header_offset));
        if (place->nbytes > 0)
            memcpy(grow(file, place->nbytes), records[i].data, place->nbytes);
        if (place->descriptor_nbytes > 0)
            bth_zip_write_descriptor(place, file->sums[i], grow(file, place->descriptor_nbytes));
    }
    size_t directory_at = file->nbytes;
    for (size_t i = 0; i < n_records; i++) {
        snprintf(name, sizeof name, "archive/%s", records[i].name);
        bth_zip_write_central(&file->places[i], name, file->sums[i],
                              grow(file, bth_layout_central_nbytes(&file->places[i])));
    }
    size_t directory_nbytes = file->nbytes - directory_at;
    bth_zip_write_end(n_records, directory_at, directory_nbytes, grow(file, BTH_ZIP_END_NBYTES));
}

struct berth_config config_of(const char *assignments)
{
    struct berth_config config;
    berth_error error;

    bth_error_clear(&error);
    cr_assert_eq(berth_config_patch(assignments, &error), 0, "%s", error.message);
    cr_assert_eq(bth_config_resolve(NULL, &config, &error), 0, "%s", error.message);
    berth_config_unpatch(&error);
    return config;
}
