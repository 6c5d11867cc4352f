/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Many writers, one file: three processes each have some rows of one matrix, and save them as one
 * checkpoint. Here they are children of one process, and pipes carry their receipts; MPI, or any
 * other way to send a few bytes, does as well.
 *
 *     joint [FILE]
 */
#define _POSIX_C_SOURCE 200809L
#include <berth.h>
#include <berth/joint.h>
#include <berth/more.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_WRITERS = 3, ROWS = 1000, COLUMNS = 256 };

static void die(const berth_error *error)
{
    fprintf(stderr, "%s\n", error->message);
    exit(1);
}

/* What is to be saved: names, shapes, numbers; the rows are with the writers. */
static berth_value *make_outline(berth_tree *tree)
{
    static const int64_t shape[] = {ROWS, COLUMNS};
    berth_value *state = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);

    berth_dict_set(state, "epoch", berth_make_int(tree, 7));
    berth_dict_set(state, "weight",
                   berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32,
                                                           .rank = 2,
                                                           .shape = shape,
                                                           .data = BERTH_ELSEWHERE}));
    return state;
}

/* One writer: its rows go into the file, its receipt into the pipe. */
static void write_rows(const berth_joint_info *info, int64_t writer, int pipe_end)
{
    const int64_t first = ROWS * writer / N_WRITERS, end = ROWS * (writer + 1) / N_WRITERS;
    const int64_t starts[] = {first, 0}, lengths[] = {end - first, COLUMNS};
    float *rows = malloc((size_t)((end - first) * COLUMNS) * sizeof *rows);
    berth_error error;
    void *receipt;
    size_t nbytes;

    if (!rows)
        exit(1);
    for (int64_t i = 0; i < (end - first) * COLUMNS; i++)
        rows[i] = (float)(first * COLUMNS + i);
    const berth_slice slice = berth_slice_of("weight", starts, lengths, rows);
    if (berth_joint_write(info->ticket, info->ticket_nbytes, (size_t)writer, &slice, 1, NULL,
                          &receipt, &nbytes, &error) < 0)
        die(&error);
    if (write(pipe_end, &nbytes, sizeof nbytes) != (ssize_t)sizeof nbytes ||
        write(pipe_end, receipt, nbytes) != (ssize_t)nbytes)
        exit(1);
    exit(0);
}

/* Receives `nbytes` bytes. */
static void receive(int pipe_end, void *bytes, size_t nbytes)
{
    for (size_t n = 0; n < nbytes;) {
        ssize_t more = read(pipe_end, (char *)bytes + n, nbytes - n);
        if (more <= 0) {
            fprintf(stderr, "a writer has failed\n");
            exit(1);
        }
        n += (size_t)more;
    }
}

static void add_receipt(berth_joint *joint, int pipe_end)
{
    berth_error error;
    size_t nbytes;

    receive(pipe_end, &nbytes, sizeof nbytes);
    void *receipt = malloc(nbytes);
    if (!receipt)
        exit(1);
    receive(pipe_end, receipt, nbytes);
    if (berth_joint_add_receipt(joint, receipt, nbytes, &error) < 0)
        die(&error);
    free(receipt);
    close(pipe_end);
}

/* Starts a writer. Returns where its receipt will come from. */
static int start_writer(const berth_joint_info *info, int64_t writer)
{
    int ends[2];

    if (pipe(ends) < 0)
        exit(1);
    pid_t child = fork();
    if (child < 0)
        exit(1);
    if (child == 0)
        write_rows(info, writer, ends[1]);
    close(ends[1]);
    return ends[0];
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "joint.pt";
    berth_joint_info info;
    berth_joint *joint;
    berth_error error;
    int receipts[N_WRITERS];

    berth_tree *tree = berth_tree_new(&error);
    if (!tree ||
        berth_joint_begin(path, make_outline(tree), N_WRITERS, NULL, &joint, &info, &error) < 0)
        die(&error);
    for (int i = 0; i < N_WRITERS; i++)
        receipts[i] = start_writer(&info, i);
    for (int i = 0; i < N_WRITERS; i++)
        add_receipt(joint, receipts[i]);
    while (wait(NULL) > 0)
        continue; /* nobody writes any more */
    if (berth_joint_finish(joint, &error) < 0)
        die(&error);
    berth_tree_free(tree);
    printf("%s: %d rows of %d writers, %llu bytes\n", path, ROWS, N_WRITERS,
           (unsigned long long)info.nbytes);
    return 0;
}
