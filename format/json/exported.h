/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Programs of torch.export (.pt2, tried with PyTorch 2.13): a zip archive in which a JSON text says
 * what the weights are, and a record holds the bytes of each storage (FORMAT.md 9). Source:
 * torch/export/pt2_archive/_package.py, torch/_export/serde/schema.py.
 */
#ifndef BTH_FORMAT_JSON_EXPORTED_H
#define BTH_FORMAT_JSON_EXPORTED_H

#include "berth.h"

/* The record that says what the archive is, and its bytes. */
#define BTH_EXPORTED_FORMAT_RECORD "archive_format"
#define BTH_EXPORTED_FORMAT "pt2"
/* The text of a model: data/weights/<model>_weights_config.json. */
#define BTH_EXPORTED_WEIGHTS_PREFIX "data/weights/"
#define BTH_EXPORTED_CONFIG_SUFFIX "_weights_config.json"

/* The text of one model, and the records of its archive. */
typedef struct bth_exported_text {
    const uint8_t *bytes;
    size_t nbytes;
    const char *record; /* its name */
    uint64_t offset;    /* in the file */
    /* Sets *nbytes to the size of a record. False: there is none. */
    bool (*find_record)(const void *context, const char *record, uint64_t *nbytes);
    const void *context;
} bth_exported_text;

/* *weights: a dict of the model's weights by name, in the text's order: tensors and Parameters, as
 * its state_dict has them (E1 to E3). Makes storages without data and offsets in `tree`; the key of
 * each is its record's name without "data/". Errors: BERTH_E_UNAVAILABLE: this build has no JSON
 * library. */
int bth_exported_read_weights(const bth_exported_text *text, berth_tree *tree,
                              berth_value **weights, berth_error *error);

#endif
