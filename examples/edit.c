/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Editing: saves a checkpoint again without its optimizer, and with epoch = 0. Bytes of tensors are
 * not copied in memory; they go from the old file to the new one.
 *
 * usage: edit IN OUT
 */
#include <berth.h>
#include <berth/more.h>
#include <stdio.h>
#include <string.h>

/* All members of the root but those two. */
static berth_value *edit(berth_tree *tree, const berth_value *root)
{
    berth_value *edited = berth_make_dict(tree, BERTH_KIND_DICT), *key, *item;

    for (size_t i = 0; berth_dict_at(root, i, &key, &item); i++) {
        const char *name = berth_as_text(key, NULL);
        if (name && (strcmp(name, "optimizer") == 0 || strcmp(name, "epoch") == 0))
            continue;
        berth_dict_set_value(edited, berth_value_copy(tree, key, 0),
                             berth_value_copy(tree, item, 0));
    }
    berth_dict_set(edited, "epoch", berth_make_int(tree, 0));
    return edited;
}

int main(int argc, char **argv)
{
    berth_checkpoint *old = NULL;
    berth_tree *tree = NULL;
    berth_error error;
    int code;

    if (argc != 3) {
        fprintf(stderr, "usage: edit IN OUT\n");
        return 2;
    }
    code = berth_open(argv[1], NULL, &old, &error);
    if (code == 0 && !(tree = berth_tree_new(&error)))
        code = error.code;
    if (code == 0)
        code = berth_save(argv[2], edit(tree, berth_root(old)), NULL, &error);
    berth_tree_free(tree);
    berth_close(old); /* after the tree, which refers to its bytes */
    if (code < 0)
        fprintf(stderr, "%s\n", error.message);
    return code < 0 ? 1 : 0;
}
