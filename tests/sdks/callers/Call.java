import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.File;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Parameter;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.Base64;
import okhttp3.Response;
import sfumato.ApiClient;
import sfumato.ApiException;
import sfumato.ApiResponse;
import sfumato.JSON;
import sfumato.model.Problem;

/**
 * Calls operations of the generated client by name. Each line of standard input is a JSON request, and each line of
 * standard output its result: the status, the content and what the client decoded from it.
 */
public final class Call {
    private static byte[] content;

    private static ApiClient connect(JsonObject given) {
        ApiClient client = new ApiClient();
        client.setHttpClient(client.getHttpClient().newBuilder().addInterceptor(chain -> {
            Response response = chain.proceed(chain.request());
            content = response.peekBody(Long.MAX_VALUE).bytes();
            return response;
        }).build());
        client.setBasePath(given.get("url").getAsString());
        client.setBearerToken(given.get("key").getAsString());
        return client;
    }

    private static Object argument(Parameter parameter, JsonObject given) throws Exception {
        JsonElement value = given.getAsJsonObject("named").get(parameter.getName().replaceFirst("^_", "")); // Java reserves some names
        if (value != null) {
            return value.isJsonNull() ? null : JSON.getGson().fromJson(value, parameter.getParameterizedType());
        }
        byte[] body = Base64.getDecoder().decode(given.get("body").getAsString());
        if (parameter.getType() == File.class) {
            File file = File.createTempFile("body", null);
            Files.write(file.toPath(), body);
            return file;
        }
        return JSON.getGson().fromJson(new String(body, "UTF-8"), parameter.getParameterizedType());
    }

    private static JsonObject call(JsonObject given) throws Exception {
        Class<?> api = Class.forName("sfumato.api." + given.get("api").getAsString() + "Api");
        String name = given.get("operation").getAsString() + "WithHttpInfo";
        Method method = Arrays.stream(api.getMethods()).filter(one -> one.getName().equals(name)).findFirst().get();
        Object[] arguments = new Object[method.getParameterCount()];
        for (int index = 0; index < arguments.length; index++) {
            arguments[index] = argument(method.getParameters()[index], given);
        }
        JsonObject result = new JsonObject();
        try {
            Object target = api.getConstructor(ApiClient.class).newInstance(connect(given));
            ApiResponse<?> response = (ApiResponse<?>) method.invoke(target, arguments);
            result.addProperty("status", response.getStatusCode());
            boolean isModel = response.getData() != null && response.getData().getClass().getName().startsWith("sfumato");
            result.add("decoded", isModel ? JsonParser.parseString(JSON.serialize(response.getData())) : null);
        } catch (InvocationTargetException failure) {
            if (!(failure.getCause() instanceof ApiException problem) || problem.getCode() == 0) {
                throw failure;
            }
            result.addProperty("status", problem.getCode());
            if (problem.getResponseBody() != null && !problem.getResponseBody().isEmpty()) {
                Problem decoded = JSON.getGson().fromJson(problem.getResponseBody(), Problem.class);
                result.add("decoded", JsonParser.parseString(JSON.serialize(decoded)));
            }
        }
        result.addProperty("content", Base64.getEncoder().encodeToString(content));
        return result;
    }

    public static void main(String[] arguments) throws Exception {
        for (String line : (Iterable<String>) new java.io.BufferedReader(new java.io.InputStreamReader(System.in)).lines()::iterator) {
            JsonObject result;
            try {
                result = call(JsonParser.parseString(line).getAsJsonObject());
            } catch (Exception failure) {
                Throwable cause = failure.getCause() == null ? failure : failure.getCause();
                result = new JsonObject();
                result.addProperty("failure", cause.toString());
            }
            System.out.println(result);
        }
        System.exit(0); // the client's pool of connections keeps threads
    }
}
