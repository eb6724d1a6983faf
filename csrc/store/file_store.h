// A store in a directory of a file system that all ranks share.
//
// Each key is one file, written aside and renamed into place, so that a reader sees all of a value
// or nothing. The directory is made when it is missing and never emptied: values of an earlier job
// in it would be taken for this job's, so give each job a directory (or a key prefix) of its own.
#pragma once

#include <string>

#include "store/store.h"

namespace pycomm {

class FileStore : public Store {
  public:
    // Throws TransportError with the path when the directory cannot be made or written.
    explicit FileStore(std::string directory);

    void set(const std::string& key, const std::string& value) override;
    // Looks again after pauses that grow from 1 to 50 ms.
    std::string get(const std::string& key, const Deadline& deadline) override;
    bool contains(const std::string& key) override;

  private:
    std::string path_of(const std::string& key) const;

    std::string directory_;
};

}  // namespace pycomm
