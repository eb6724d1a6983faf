// The stores without a network.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "store/file_store.h"
#include "store/memory_store.h"
#include "store/store_contract.h"

namespace pycomm {
namespace {

using namespace store_test;

// A folder that goes away with the test.
class TemporaryFolder {
  public:
    TemporaryFolder() { REQUIRE(::mkdtemp(path_) != nullptr); }
    ~TemporaryFolder() { std::filesystem::remove_all(path_); }
    std::string path() const { return path_; }

  private:
    char path_[32] = "/tmp/pycomm-store-XXXXXX";
};

}  // namespace

TEST_CASE("memory store") {
    const auto store = std::make_shared<MemoryStore>();
    const Open open = [&] { return store; };
    SUBCASE("values") {
        check_values(open);
    }
    SUBCASE("waiting") {
        check_waiting(open);
    }
    SUBCASE("threads") {
        check_threads(open);
    }
}

TEST_CASE("file store") {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/made/by/the/store/";
    const Open open = [&] { return std::make_shared<FileStore>(path); };
    SUBCASE("values") {
        check_values(open);
    }
    SUBCASE("waiting") {
        check_waiting(open);
    }
    SUBCASE("threads") {
        check_threads(open);
    }
}

TEST_CASE("file store: a reader never sees half a value, and nothing is left aside") {
    const TemporaryFolder folder;
    const std::string values[] = {std::string(200000, 'a'), std::string(100000, 'b')};
    FileStore writer(folder.path());
    writer.set("key", values[0]);
    std::atomic<bool> stop{false};
    std::thread rewriting([&] {
        for (int i = 0; i < 100; ++i) writer.set("key", values[i % 2]);
        stop = true;
    });
    FileStore reader(folder.path());
    int wrong = 0;
    while (!stop) {
        const std::string seen = reader.get("key", Deadline::after(10));
        wrong += seen != values[0] && seen != values[1];
    }
    rewriting.join();
    CHECK(wrong == 0);
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
        files += entry.is_regular_file();
    }
    CHECK(files == 1);
}

TEST_CASE("file store: a path that cannot be a directory is named") {
    const TemporaryFolder folder;
    const std::string file = folder.path() + "/file";
    std::ofstream(file) << "text";
    for (const std::string& path : {file, file + "/below"}) {
        const Error error = error_of([&] { FileStore store(path); });
        CHECK(error.code() == ErrorCode::transport);
        CHECK(holds(error.what(), file));
    }
    CHECK(error_of([] { FileStore store(""); }).code() == ErrorCode::argument);
}

}  // namespace pycomm
