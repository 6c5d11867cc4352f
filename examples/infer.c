/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Inference: maps the weights of a small network, computes its output, and compares that with what
 * PyTorch computed (record_mlp.py).
 *
 * usage: infer mlp.pt
 */
#include <berth.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_SAMPLES = 5, N_IN = 4, N_HIDDEN = 8, N_OUT = 3 };

/* A matrix of float32, or, with rows 0, a vector. */
static const float *get_elements(berth_checkpoint *model, const char *name, int64_t rows,
                                 int64_t columns)
{
    const int64_t shape[] = {rows, columns};
    berth_error error;
    const float *elements =
        berth_expect(model, name, BERTH_FLOAT32, rows ? 2 : 1, rows ? shape : shape + 1, &error);

    if (!elements) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    return elements; /* lives until berth_close */
}

/* out = in weight^T + bias, as torch.nn.Linear does. */
static void linear(const float *in, int n_in, const float *weight, const float *bias, float *out,
                   int n_out)
{
    for (int i = 0; i < n_out; i++) {
        out[i] = bias[i];
        for (int j = 0; j < n_in; j++)
            out[i] += in[j] * weight[i * n_in + j];
    }
}

int main(int argc, char **argv)
{
    berth_error error;
    berth_checkpoint *model;
    float largest = 0;

    if (berth_open(argc > 1 ? argv[1] : "mlp.pt", NULL, &model, &error) < 0) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    const float *weight0 = get_elements(model, "model.0.weight", N_HIDDEN, N_IN);
    const float *bias0 = get_elements(model, "model.0.bias", 0, N_HIDDEN);
    const float *weight2 = get_elements(model, "model.2.weight", N_OUT, N_HIDDEN);
    const float *bias2 = get_elements(model, "model.2.bias", 0, N_OUT);
    const float *input = get_elements(model, "input", N_SAMPLES, N_IN);
    const float *expected = get_elements(model, "output", N_SAMPLES, N_OUT);

    for (int sample = 0; sample < N_SAMPLES; sample++) {
        float hidden[N_HIDDEN], output[N_OUT];
        linear(input + sample * N_IN, N_IN, weight0, bias0, hidden, N_HIDDEN);
        for (int i = 0; i < N_HIDDEN; i++)
            hidden[i] = hidden[i] > 0 ? hidden[i] : 0;
        linear(hidden, N_HIDDEN, weight2, bias2, output, N_OUT);
        for (int i = 0; i < N_OUT; i++) {
            float difference = output[i] - expected[sample * N_OUT + i];
            difference = difference < 0 ? -difference : difference;
            largest = difference > largest ? difference : largest;
        }
    }
    berth_close(model);
    printf("largest difference from PyTorch: %g\n", largest);
    return largest < 1e-5F ? 0 : 1;
}
