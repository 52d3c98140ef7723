// Has DXC compile many shaders in one process: loading it takes longer than most shaders do.
//
//   dxc LIBRARY THREADS < LIST
//
// LIBRARY is libdxcompiler.so or dxcompiler.dll. Each line of LIST is a profile (cs_6_2), 1 where 16-bit types are allowed or 0, and a file,
// with tabs between them. For each file that DXC refuses there is a line FILE, tab, PROFILE, tab, what it says, with spaces for line ends.
// The last line is "done N", N the number of shaders, so that a crash is noticed. The arguments are those of wgpu.
//
// The header of DXC is needed (-I). On Linux it describes the interface with the virtual destructor that libraries of that time have.

#ifdef _WIN32
// The header writes identifiers for Microsoft's compiler; GCC takes them as specialisations.
#include <windows.h>

#include <cstdio>

static GUID parsed(const char *text)
{
    unsigned a, b, c, d[8];
    sscanf(text, "%8x-%4x-%4x-%2x%2x-%2x%2x%2x%2x%2x%2x", &a, &b, &c, d, d + 1, d + 2, d + 3, d + 4, d + 5, d + 6, d + 7);
    GUID id = {a, static_cast<unsigned short>(b), static_cast<unsigned short>(c), {}};
    for (int i = 0; i < 8; i++)
        id.Data4[i] = static_cast<unsigned char>(d[i]);
    return id;
}

#define CROSS_PLATFORM_UUIDOF(name, text)                                                                                                  \
    struct name;                                                                                                                           \
    template <>                                                                                                                            \
    inline const GUID &__mingw_uuidof<name>()                                                                                              \
    {                                                                                                                                      \
        static const GUID id = parsed(text);                                                                                               \
        return id;                                                                                                                         \
    }
#define _Maybenull_
#else
#include <dlfcn.h>
#endif

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dxcapi.h"

struct Shader {
    std::string profile;
    bool small_types;
    std::string file;
};

static DxcCreateInstanceProc loaded(const char *path)
{
#ifdef _WIN32
    HMODULE library = LoadLibraryA(path);
    void *found = library ? reinterpret_cast<void *>(GetProcAddress(library, "DxcCreateInstance")) : nullptr;
#else
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    void *found = library ? dlsym(library, "DxcCreateInstance") : nullptr;
#endif
    if (!found) {
        fprintf(stderr, "%s is no DXC\n", path);
        exit(1);
    }
    return reinterpret_cast<DxcCreateInstanceProc>(found);
}

// The message with which DXC refuses a shader; empty where it takes it.
static std::string refused(IDxcCompiler3 *compiler, const Shader &shader)
{
    std::ifstream file(shader.file, std::ios::binary);
    if (!file)
        return "no such file";
    std::string text((std::istreambuf_iterator<char>(file)), {});
    std::wstring profile(shader.profile.begin(), shader.profile.end());
    std::vector<LPCWSTR> arguments = {L"-E", L"main", L"-T", profile.c_str(), L"-HV", L"2018", L"-no-warnings", L"-Ges"};
    if (shader.small_types)
        arguments.push_back(L"-enable-16bit-types");
    DxcBuffer source = {text.data(), text.size(), DXC_CP_UTF8};
    IDxcResult *result = nullptr;
    HRESULT status = compiler->Compile(&source, arguments.data(), static_cast<UINT32>(arguments.size()), nullptr, __uuidof(IDxcResult),
                                       reinterpret_cast<void **>(&result));
    if (status < 0 || !result)
        return "Compile failed";
    std::string said;
    IDxcBlobUtf8 *errors = nullptr;
    result->GetOutput(DXC_OUT_ERRORS, __uuidof(IDxcBlobUtf8), reinterpret_cast<void **>(&errors), nullptr);
    if (errors) {
        said.assign(errors->GetStringPointer(), errors->GetStringLength());
        errors->Release();
    }
    IDxcBlob *object = nullptr;
    result->GetStatus(&status);
    if (status >= 0)
        result->GetOutput(DXC_OUT_OBJECT, __uuidof(IDxcBlob), reinterpret_cast<void **>(&object), nullptr);
    bool made = object && object->GetBufferSize() > 0;
    if (object)
        object->Release();
    result->Release();
    return made ? "" : said.empty() ? "no DXIL" : said;
}

int main(int count, char **arguments)
{
    if (count != 3) {
        fprintf(stderr, "dxc LIBRARY THREADS < LIST\n");
        return 1;
    }
    DxcCreateInstanceProc create = loaded(arguments[1]);
    std::vector<Shader> shaders;
    for (std::string line; std::getline(std::cin, line);) {
        size_t first = line.find('\t'), second = line.find('\t', first + 1);
        if (second == std::string::npos) {
            fprintf(stderr, "not profile, 0 or 1, file: %s\n", line.c_str());
            return 1;
        }
        shaders.push_back({line.substr(0, first), line[first + 1] == '1', line.substr(second + 1)});
    }
    std::atomic<size_t> next{0};
    std::mutex printing;
    auto work = [&] {
        IDxcCompiler3 *compiler = nullptr;
        if (create(CLSID_DxcCompiler, __uuidof(IDxcCompiler3), reinterpret_cast<void **>(&compiler)) < 0) {
            fprintf(stderr, "this DXC has no IDxcCompiler3\n");
            exit(1);
        }
        for (size_t i; (i = next++) < shaders.size();) {
            std::string said = refused(compiler, shaders[i]);
            std::lock_guard<std::mutex> lock(printing);
            if ((i + 1) % 500 == 0)
                fprintf(stderr, "DXC: %zu of %zu\n", i + 1, shaders.size());
            if (said.empty())
                continue;
            for (char &c : said)
                if (c == '\n' || c == '\r' || c == '\t')
                    c = ' ';
            printf("%s\t%s\t%s\n", shaders[i].file.c_str(), shaders[i].profile.c_str(), said.c_str());
        }
        compiler->Release();
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < atoi(arguments[2]); i++)
        threads.emplace_back(work);
    for (std::thread &thread : threads)
        thread.join();
    printf("done %zu\n", shaders.size());
}
