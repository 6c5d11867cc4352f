/* SPDX-License-Identifier: BSD-3-Clause */
/* The bytes of .data/serialization_id, which need the names and the CRCs of all other records. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/checksum.h"
#include "save/image.h"

static int image_hash_names(bth_image *image, berth_error *error)
{
    const berth_plan *plan = image->plan;
    bth_id_names names = {0};

    if (bth_id_names_begin(&names, plan->id_index, error) == 0) {
        for (size_t i = 0; i < plan->id_index; i++) {
            const char *name = bth_plan_record_name(plan, i);
            bth_id_names_add(&names, name, strlen(name));
        }
        image->names_hash = bth_id_names_hash(&names);
    }
    bth_id_names_free_all(&names);
    return error->code;
}

int bth_image_begin_id(bth_image *image, berth_error *error)
{
    const berth_plan *plan = image->plan;

    if (plan->id_index == BTH_NO_RECORD)
        return 0;
    image->starts = bth_allocate(plan->n_records * sizeof *image->starts);
    if (!image->starts)
        return bth_fail_memory(error, plan->n_records * sizeof *image->starts);
    return image_hash_names(image, error);
}

void bth_image_compute_id(bth_image *image)
{
    const berth_plan *plan = image->plan;
    size_t id = plan->id_index;
    uint64_t crc32s = 0;

    if (id == BTH_NO_RECORD)
        return;
    for (size_t i = 0; i < id; i++)
        crc32s = bth_id_combine_record(crc32s, image->starts[i], plan->records[i].layout.nbytes,
                                       bth_image_crc32(image, i));
    bth_id_write(image->names_hash, crc32s, image->id);
    if (!image->sums)
        return;
    atomic_store(&image->sums[id].crc32, bth_crc32(0, image->id, sizeof image->id));
    atomic_store(&image->sums[id].missing_nbytes, 0);
}
