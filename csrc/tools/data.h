// Input data that differs between ranks and elements, and the check of results against it.
#pragma once

#include <map>
#include <vector>

#include "tools/case.h"

namespace pycomm::tools {

// Small whole numbers with a period that no power of two divides, so that a displaced block shows.
// Their sums are exact in every type, whatever the order of addition.
class Data {
  public:
    // Throws ArgumentError for types that it has no numbers for (bool and complex).
    Data(int ranks, DataType dtype);

    // Before a checked call: input and the root's broadcast get this rank's data, every other
    // output a sentinel.
    void prepare(const Case& c, const Buffers& buffers);
    // Elements of the output that are wrong.
    int64_t count_wrong(const Case& c, const Buffers& buffers);

  private:
    const std::vector<std::byte>& period_of(int source);
    int number(int source, int64_t element) const;
    void fill(const Buffer& buffer, int source);
    int64_t compare(const std::byte* data, const Block& block);

    int ranks_;
    DataType dtype_;
    std::map<int, std::vector<std::byte>> periods_;  // by source, Block::sum included
};

}  // namespace pycomm::tools
