// A key-value store that the processes of a job share while they find each other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"

namespace pycomm {

// Thread-safe. Values are arbitrary bytes. A key is set once; setting it again replaces the value.
class Store {
  public:
    virtual ~Store() = default;
    virtual void set(const std::string& key, const std::string& value) = 0;
    // Waits until `key` exists. Throws CommTimeoutError naming the key at the deadline.
    virtual std::string get(const std::string& key, const Deadline& deadline) = 0;
    virtual bool contains(const std::string& key) = 0;
};

// Exchange of small blobs among the ranks of a group, before channels exist.
class Bootstrap {
  public:
    virtual ~Bootstrap() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    // Every rank gives one blob and receives all, in rank order. Collective. Throws
    // CommTimeoutError with the missing ranks at the deadline.
    virtual std::vector<std::string> all_gather(const std::string& blob,
                                                const Deadline& deadline) = 0;
};

}  // namespace pycomm
