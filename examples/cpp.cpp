// SPDX-License-Identifier: BSD-3-Clause
// C++17: saves two tensors, loads them again, and shows that errors are exceptions.
//
// usage: cpp FILE    (the file is made, and removed)
#include <berth.hpp>
#include <cstdio>
#include <iostream>
#include <vector>

int main(int argc, char **argv)
{
    const std::string path = argc > 1 ? argv[1] : "cpp.pt";
    const std::vector<float> weight = {1, 2, 3, 4, 5, 6};
    const std::vector<std::int64_t> ids = {7, 8};

    try {
        berth::tree tree;
        berth_value *state = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);
        berth_dict_set(state, "weight", tree.tensor(weight, {2, 3}));
        berth_dict_set(state, "ids", tree.tensor(ids, {2}));
        berth::save(path, state);

        berth::checkpoint model(path);
        auto loaded = model.expect<float>("weight", {2, 3});
        std::cout << loaded.count << " elements, the last is " << loaded.data[5] << '\n';
        if (loaded.data[0] != weight[0] || model.expect<std::int64_t>("ids", {2}).data[1] != 8)
            return 1;
        try {
            model.expect<double>("weight", {2, 3});
            return 1;
        } catch (const berth::error &error) {
            std::cout << "as it should be: " << error.what() << '\n';
        }
    } catch (const berth::error &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
    return std::remove(path.c_str());
}
