/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Streams: a checkpoint goes to a sink of the program's own and comes back from its own source.
 * Here both are a buffer; they could be an object store, a database or a compressed file.
 */
#include <berth.h>
#include <berth/more.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct buffer {
    unsigned char *bytes;
    size_t nbytes, capacity;
} buffer;

/* in_order: each call continues where the last one ended. Returns 0, or an errno value. */
static int append(void *context, const void *bytes, size_t nbytes, uint64_t offset)
{
    buffer *b = context;

    (void)offset;
    if (nbytes > b->capacity - b->nbytes) {
        size_t capacity = 2 * (b->nbytes + nbytes);
        unsigned char *larger = realloc(b->bytes, capacity);
        if (!larger)
            return ENOMEM;
        b->bytes = larger;
        b->capacity = capacity;
    }
    memcpy(b->bytes + b->nbytes, bytes, nbytes);
    b->nbytes += nbytes;
    return 0;
}

/* Called from several threads at once; Berth asks for no byte beyond the size of the source. */
static int read_at(void *context, void *bytes, size_t nbytes, uint64_t offset)
{
    const buffer *b = context;

    memcpy(bytes, b->bytes + offset, nbytes);
    return 0;
}

static int save(buffer *b, berth_error *error)
{
    static const float elements[] = {1, 2, 3, 4};
    static const int64_t shape[] = {4};
    berth_tensor tensor = {.dtype = BERTH_FLOAT32, .rank = 1, .shape = shape, .data = elements};
    berth_sink sink = {.write = append, .context = b, .in_order = true};
    berth_tree *tree = berth_tree_new(error);

    if (!tree)
        return error->code;
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set(root, "weight", berth_make_tensor(tree, &tensor));
    const berth_target target = berth_to_sink(&sink);
    const berth_content content = berth_of_value(root);
    const berth_params params = {.archive_name = "model"};
    int code = berth_save_to(&target, &content, &params, error);
    berth_tree_free(tree);
    return code;
}

static int load(buffer *b, berth_error *error)
{
    berth_source source = {
        .nbytes = b->nbytes, .name = "the buffer", .read = read_at, .context = b};
    berth_checkpoint *model;
    float elements[4];

    int code = berth_open_source(&source, NULL, &model, error);
    if (code < 0)
        return code;
    code =
        berth_tensor_read(model, berth_find_tensor(model, "weight", NULL), 0, 4, elements, error);
    if (code == 0)
        printf("%lu bytes, the last element is %g\n", (unsigned long)b->nbytes,
               (double)elements[3]);
    berth_close(model);
    return code;
}

int main(void)
{
    buffer b = {NULL, 0, 0};
    berth_error error;

    int code = save(&b, &error);
    if (code == 0)
        code = load(&b, &error);
    if (code < 0)
        fprintf(stderr, "%s\n", error.message);
    free(b.bytes);
    return code < 0 ? 1 : 0;
}
