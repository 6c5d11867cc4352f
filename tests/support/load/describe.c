/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/load/describe.h"

char *describe(berth_checkpoint *checkpoint)
{
    const berth_value *root = berth_root(checkpoint);
    char *text = NULL;
    size_t nbytes;
    FILE *out = open_memstream(&text, &nbytes);

    for (size_t i = 0; i < berth_value_count(root); i++) {
        const berth_tensor *tensor = berth_as_tensor(bth_value_item(root, i));
        const char *key = berth_as_text(bth_value_key(root, i), NULL);
        int64_t integer = 0;
        (void)fprintf(out, "%s:", key ? key : "?");
        if (!tensor) {
            (void)berth_as_int(bth_value_item(root, i), &integer);
            (void)fprintf(out, " %lld\n", (long long)integer);
            continue;
        }
        size_t tensor_nbytes = berth_tensor_nbytes(tensor);
        uint8_t *elements = malloc(tensor_nbytes + 1);
        berth_error error;
        (void)fprintf(out, " %s", berth_dtype_name(tensor->dtype));
        for (int32_t axis = 0; axis < tensor->rank; axis++)
            (void)fprintf(out, " %lld", (long long)tensor->shape[axis]);
        if (berth_tensor_read(checkpoint, tensor, 0, berth_tensor_numel(tensor), elements, &error) <
            0)
            (void)fprintf(out, " %s", error.message);
        else
            for (size_t k = 0; k < tensor_nbytes; k++)
                (void)fprintf(out, "%s%02x", k % 4 == 0 ? " " : "", elements[k]);
        free(elements);
        (void)fputc('\n', out);
    }
    (void)fclose(out);
    return text;
}

const char sample_text[] =
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    "weight: float32 2 3 00000000 3f800000 40000000 40400000 40800000 40a00000\n"
    "bias: int64 3 ffffffff ffffffff 00000000 00000000 00000000 00000001\n"
    "words: uint16 2 0001ffff\n"
    "epoch: 3\n";
#else
    "weight: float32 2 3 00000000 0000803f 00000040 00004040 00008040 0000a040\n"
    "bias: int64 3 ffffffff ffffffff 00000000 00000000 01000000 00000000\n"
    "words: uint16 2 0100ffff\n"
    "epoch: 3\n";
#endif
