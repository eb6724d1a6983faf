// Key files: how a key becomes a path, writing by rename, reading by polling.
#include "store/file_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/interrupt.h"
#include "store/random.h"
#include "store/socket.h"

namespace pycomm {
namespace {

constexpr size_t component_bytes = 200;  // file systems allow 255 bytes in a name

// Letters, digits, '-' and '_' stand for themselves, every other byte is %XX.
std::string encode(const std::string& key) {
    static const char digits[] = "0123456789ABCDEF";
    std::string name = "k";
    for (const char byte : key) {
        const auto value = static_cast<unsigned char>(byte);
        const bool plain = (value >= 'a' && value <= 'z') || (value >= 'A' && value <= 'Z') ||
                           (value >= '0' && value <= '9') || value == '-' || value == '_';
        if (plain) {
            name += byte;
        } else {
            name += '%';
            name += digits[value >> 4];
            name += digits[value & 15];
        }
    }
    return name;
}

void make_directories(const std::string& path) {
    for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
        const std::string part = path.substr(0, end);
        if (::mkdir(part.c_str(), 0777) == -1 && errno != EEXIST) {
            const int error = errno;
            struct stat info{};
            // A parent on a read-only or automounted file system may exist and still refuse mkdir.
            const bool exists = ::stat(part.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
            PYCOMM_CHECK(exists, transport, "cannot make the directory ", part, ": ",
                         errno_text(error));
        }
        if (end == std::string::npos) return;
    }
}

std::optional<std::string> read_file(const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd && (errno == ENOENT || errno == ENOTDIR || errno == ESTALE)) return std::nullopt;
    PYCOMM_CHECK(fd, transport, "cannot read ", path, ": ", errno_text(errno));
    std::string value;
    char part[65536];
    while (true) {
        const ssize_t count = ::read(fd.get(), part, sizeof(part));
        if (count == 0) return value;
        if (count == -1 && errno == EINTR) continue;
        if (count == -1 && errno == ESTALE) return std::nullopt;  // replaced on another host
        PYCOMM_CHECK(count > 0, transport, "cannot read ", path, ": ", errno_text(errno));
        value.append(part, static_cast<size_t>(count));
    }
}

void write_file(const std::string& path, const std::string& value) {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    PYCOMM_CHECK(fd, transport, "cannot write ", path, ": ", errno_text(errno));
    for (size_t done = 0; done < value.size();) {
        const ssize_t count = ::write(fd.get(), value.data() + done, value.size() - done);
        if (count == -1 && errno == EINTR) continue;
        PYCOMM_CHECK(count > 0, transport, "cannot write ", path, ": ", errno_text(errno));
        done += static_cast<size_t>(count);
    }
    // Network file systems may report a full disk only here.
    PYCOMM_CHECK_SYSCALL(::fsync(fd.get()), "cannot write ", path);
}

// Network file systems cache that a name is absent; opening its directory asks the server again.
void refresh(const std::string& path) {
    DIR* const directory = ::opendir(path.substr(0, path.rfind('/')).c_str());
    if (directory != nullptr) ::closedir(directory);
}

}  // namespace

FileStore::FileStore(std::string directory) : directory_(std::move(directory)) {
    PYCOMM_CHECK(!directory_.empty(), argument, "the directory of a file store is empty");
    while (directory_.size() > 1 && directory_.back() == '/') directory_.pop_back();
    make_directories(directory_);
    PYCOMM_CHECK_SYSCALL(::access(directory_.c_str(), R_OK | W_OK | X_OK),
                         "the file store's directory ", directory_, " cannot be used");
}

// Long names are cut into a chain of directories, whose '+' no encoded key contains.
std::string FileStore::path_of(const std::string& key) const {
    const std::string name = encode(key);
    std::string path = directory_;
    size_t start = 0;
    for (; name.size() - start > component_bytes; start += component_bytes) {
        path += '/' + name.substr(start, component_bytes) + '+';
    }
    return path + '/' + name.substr(start);
}

void FileStore::set(const std::string& key, const std::string& value) {
    const std::string path = path_of(key);
    if (path.rfind('/') != directory_.size()) make_directories(path.substr(0, path.rfind('/')));
    const std::string aside = concat(directory_, "/.write-", random_hex(16));
    try {
        write_file(aside, value);
        PYCOMM_CHECK_SYSCALL(::rename(aside.c_str(), path.c_str()), "cannot rename ", aside, " to ",
                             path);
    } catch (...) {
        ::unlink(aside.c_str());
        throw;
    }
}

std::string FileStore::get(const std::string& key, const Deadline& deadline) {
    const std::string path = path_of(key);
    std::chrono::nanoseconds pause = std::chrono::milliseconds(1);
    while (true) {
        if (std::optional<std::string> value = read_file(path)) return *std::move(value);
        PYCOMM_CHECK(!deadline.expired(), timeout, "the key '", key, "' did not appear within ",
                     deadline.seconds(), " s in the file store ", directory_);
        check_interrupt();
        std::this_thread::sleep_for(std::min(pause, deadline.remaining()));
        pause = std::min<std::chrono::nanoseconds>(pause * 2, std::chrono::milliseconds(50));
        refresh(path);
    }
}

bool FileStore::contains(const std::string& key) {
    const std::string path = path_of(key);
    refresh(path);
    return ::access(path.c_str(), F_OK) == 0;
}

}  // namespace pycomm
