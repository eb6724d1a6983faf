// A store in the memory of one process, shared by its threads.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <unordered_map>

#include "store/store.h"

namespace pycomm {

class MemoryStore : public Store {
  public:
    void set(const std::string& key, const std::string& value) override;
    std::string get(const std::string& key, const Deadline& deadline) override;
    bool contains(const std::string& key) override;

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::unordered_map<std::string, std::string> values_;
};

}  // namespace pycomm
