/* SPDX-License-Identifier: BSD-3-Clause */
/* For a build without jansson: safetensors files and exported programs are refused. */
#include "base/error.h"
#include "format/json/exported.h"
#include "format/json/safetensors.h"

static int fail_without_json(const char *what, berth_error *error)
{
    return bth_fail_status(error, BERTH_E_UNAVAILABLE,
                           "%s: this build of Berth was made without jansson, which reads and "
                           "writes its header",
                           what);
}

int bth_safetensors_read(const uint8_t *head, uint64_t header_nbytes, uint64_t file_nbytes,
                         berth_tree *tree, bth_safetensors *contents, berth_error *error)
{
    (void)head;
    (void)header_nbytes;
    (void)file_nbytes;
    (void)tree;
    (void)contents;
    return fail_without_json("a safetensors file", error);
}

int bth_safetensors_write(const bth_safetensors_new *contents, uint8_t **bytes, size_t *nbytes,
                          berth_error *error)
{
    (void)contents;
    (void)bytes;
    (void)nbytes;
    return fail_without_json("a safetensors file", error);
}

int bth_exported_read_weights(const bth_exported_text *text, berth_tree *tree,
                              berth_value **weights, berth_error *error)
{
    (void)text;
    (void)tree;
    (void)weights;
    return fail_without_json("a .pt2 program of torch.export", error);
}
